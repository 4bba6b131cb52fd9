"""Where the programs of this package are: beside the interpreter if pip installed them, else on PATH."""

import importlib.metadata
import os
import shutil


def path_of(name):
    try:
        files = importlib.metadata.files("ddprun") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == name and file.parent.name == "bin" and os.access(file.locate(), os.X_OK):
            return os.path.realpath(file.locate())
    found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"no program {name}: neither this package nor PATH has one\n"
                                "try:   install ddprun's wheel, or its .deb")
    return found
