"""The process of a rank: ``python -m isochrone.worker.backends.torch.parallel.rank_main``. ``group`` starts it.

It carries out one order of rank 0 at a time and reports on it, and ends with rank 0.
"""

from __future__ import annotations

import os
import socket
import sys

from isochrone.worker.backends.isolation.sent_context import context_of
from isochrone.worker.backends.processes.child_side import begin
from isochrone.worker.backends.torch.parallel import messages
from isochrone.worker.backends.torch.parallel.messages import Meet, Order, Prepare, Report, RunBatch
from isochrone.worker.backends.torch.parallel.rank import Rank, rank_failure


def main(arguments: list[str]) -> int:
    parent, link_descriptor, store = map(int, arguments)
    begin(parent)
    os.set_inheritable(link_descriptor, False)
    os.set_inheritable(store, False)
    ranks: list[Rank] = []

    def carry_out(order: Order) -> None:
        if isinstance(order, Prepare):
            ranks.append(Rank(context_of(order.context), order.rank))
            ranks[0].prepare()
        elif isinstance(order, Meet):
            ranks[0].meet(store)
        elif isinstance(order, RunBatch):
            ranks[0].stage.run(order)

    with socket.socket(fileno=link_descriptor) as link:
        while True:
            try:
                order = messages.receive_order(link)
                if isinstance(order, messages.Close):
                    # Without the destructors of torch.distributed, which may wait for other ranks.
                    os._exit(0)
                report = Report()
                try:
                    carry_out(order)
                except BaseException as error:
                    report = Report(rank_failure(error))
                messages.send(link, report)
            except messages.Disconnected:
                return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
