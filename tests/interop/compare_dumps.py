"""Reads the flight recorder's pairs of files in a folder and says that both say the same: `compare_dumps.py FOLDER`."""

import json
import pathlib
import pickle
import sys

PLAIN = (dict, list, str, int, float, bool, type(None))


class PlainUnpickler(pickle.Unpickler):
    def find_class(self, module, name):
        raise AssertionError(f"the pickle names {module}.{name}")


def types_of(value):
    """The same shape with types in the place of values: 1 == 1.0 == True otherwise."""
    assert type(value) in PLAIN, type(value)
    if isinstance(value, dict):
        return {key: types_of(item) for key, item in value.items()}
    return [types_of(item) for item in value] if isinstance(value, list) else type(value)


compared = 0
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.json")):
    prefix, rank, _ = path.name.split(".")
    with open(path.with_name(f"{prefix}_{rank}"), "rb") as file:
        pickled = PlainUnpickler(file).load()
    read = json.loads(path.read_text())
    assert pickled == read, path
    assert list(pickled) == list(read), path
    assert types_of(pickled) == types_of(read), path
    compared += 1
print(f"{compared} pairs say the same")
