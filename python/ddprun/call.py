"""The program of a worker that elastic_launch() starts for a function: python -m ddprun.call FOLDER."""

import sys

from ddprun import launcher

launcher.run_call(sys.argv[1])
