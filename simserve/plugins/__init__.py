"""Plug-ins: schedulers, routers, splitters, admission, arrivals, lengths and prefixes, found by file name.

    build("schedulers", {"kind": "chunked", "max_num_seqs": 64})  # simserve/schedulers/chunked.py
    build("routers", "my_package.my_module:MyRouter")             # importable, or in the current directory

The fields of a class are its YAML keys; an unknown name or argument gets a did-you-mean.
"""

from simserve.plugins.arguments import Argument, Description, build, check, describe, spelled_out
from simserve.plugins.find import names

__all__ = ["Argument", "Description", "build", "check", "describe", "names", "spelled_out"]
