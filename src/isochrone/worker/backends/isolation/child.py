"""The child process of an isolated model, as the server sees it: it answers one question at a time."""

from __future__ import annotations

from isochrone.worker.backends.isolation import messages
from isochrone.worker.backends.isolation.messages import Answer, Question
from isochrone.worker.backends.processes.child import ChildProcess, Spawner, polled
from isochrone.worker.backends.processes.shared_block import SharedBlock

# Time for a model's close(); a child that takes longer is killed.
_CLOSE_MILLISECONDS = 5000
_MODULE = "isochrone.worker.backends.isolation.child_main"


class ChildGone(Exception):
    """The child exited, or was killed because its messages were invalid; the message says which."""


class ChildTimedOut(Exception):
    """The child did not answer in time and has been killed."""


class Child:
    """One process, from its start to its end."""

    def __init__(self, spawner: Spawner, request: SharedBlock, responses: list[SharedBlock]) -> None:
        self._process = ChildProcess(spawner, _MODULE, 1, [request, *responses])
        (self._link,) = self._process.links
        self._answer_or_death = polled(self._link.fileno(), self._process.death)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def death(self) -> int:
        """Readable when the process has ended."""
        return self._process.death

    def alive(self) -> bool:
        """Whether the child waits for a question; a child that sends without a question is broken."""
        return not self._answer_or_death.poll(0)

    def cause_of_death(self) -> str:
        """Of a child that is not ``alive``; it is ended if it has not ended. It may have sent why it ends."""
        if polled(self._link.fileno()).poll(0):
            try:
                sent = messages.receive_answer(self._link)
            except messages.Disconnected:
                pass
            else:
                if isinstance(sent, messages.Failed) and sent.lost:
                    return sent.lost
        return self._process.cause_of_death("it sent something without a question")

    def ask(self, question: Question, timeout_ms: int | None) -> Answer:
        """The child's answer. If there is none, the child is dead when this raises."""
        try:
            messages.send(self._link, question)
            ready = [descriptor for descriptor, _ in self._answer_or_death.poll(timeout_ms)]
            if not ready:
                self.end()
                raise ChildTimedOut
            if self._link.fileno() not in ready:
                raise messages.Disconnected("it has ended")
            return messages.receive_answer(self._link)
        except messages.Disconnected as error:
            how = self._process.cause_of_death(str(error))
            self.end()
            raise ChildGone(how) from None

    def close(self) -> None:
        """Lets the model close, then ends the child."""
        try:
            messages.send(self._link, messages.Close())
            self._process.has_died(_CLOSE_MILLISECONDS)
        except messages.Disconnected:
            pass
        self.end()

    def kill(self) -> None:
        """Ends a call of ``ask`` of another thread."""
        self._process.end()

    def end(self) -> None:
        """Kills the child and its process group. May be called again."""
        self._process.end()
        self._process.release()
