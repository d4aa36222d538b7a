"""Commands that the contract names and that are not there yet: a clear error instead of 'no such command'."""

import typer

COMMANDS = ("check", "sweep", "plan")
ANY_ARGUMENTS = {"ignore_unknown_options": True, "allow_extra_args": True}


def not_yet(context: typer.Context) -> None:
    """Not there yet."""
    from simserve.errors import SimserveError

    raise SimserveError(f"{context.info_name}: not yet part of simserve; `simserve --help` lists what is")
