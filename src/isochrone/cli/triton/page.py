"""The generator of docs/triton-flags.md: ``python -m isochrone.cli.triton.page > docs/triton-flags.md``."""

from __future__ import annotations

from isochrone.cli.triton.flags import FLAGS, Flag, Outcome

_HEAD = """\
# tritonserver's flags

`isochrone serve` takes the command line of tritonserver 2.51: `--http-port=9000` and `--http-port 9000`, booleans as
`--allow-grpc=true`, `1`, `on`, `false`, `0` or `off`. Replace the program's name in a container's command and keep the
rest. Each of the flags is in one of three states:

- **implemented**: it means what it means in Triton; the text says where it differs.
- **no effect**: it is accepted, and one line in the log says why it does nothing. It cannot change an answer.
- **refused**: the server does not start, and the message gives the reason.

Options of our own (`--host`, `--reuse-port`, `--tls-cert`, `--store`, …) are in `isochrone serve --help`.

This page is generated from `src/isochrone/cli/triton/flags.py`.

| Flag | State | Meaning, or reason |
|---|---|---|
"""

_STATES = {
    Outcome.OWN: "implemented",
    Outcome.TRANSLATED: "implemented",
    Outcome.NO_EFFECT: "no effect",
    Outcome.REFUSED: "refused",
}


def render() -> str:
    return _HEAD + "".join(_row(flag) for flag in FLAGS)


def _row(flag: Flag) -> str:
    first_word = flag.text.split()[0]
    # A value such as execution_count, and gRPC, keep their spelling.
    text = flag.text[0].upper() + flag.text[1:] if first_word.isalpha() and first_word != "gRPC" else flag.text
    text = text if text.endswith(".") else f"{text}."
    if flag.silent:
        shown = ", ".join(f"`{value}`" for value in flag.silent)
        text += f" {shown} is accepted silently."
    cell = text.replace("|", "\\|")
    return f"| `--{flag.name}` | {_STATES[flag.outcome]} | {cell} |\n"


if __name__ == "__main__":
    print(render(), end="")
