"""python -m ddprun ...: the program ddprun."""

import os
import sys

from ddprun import programs

path = programs.path_of("ddprun")
os.execv(path, [path, *sys.argv[1:]])
