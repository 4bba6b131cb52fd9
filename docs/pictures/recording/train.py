# Stands for a training script in the recording: each rank shows a bar, and rank 2 is killed once, in its 12th step.
import os
import signal
import sys
import time

rank = int(os.environ["RANK"])
is_first_round = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
STEPS = 20

for step in range(STEPS + 1):
    done = "#" * step + "." * (STEPS - step)
    print(f"\rrank {rank} {done} step {step}/{STEPS}", end="", flush=True, file=sys.stderr)
    time.sleep(0.1 + 0.02 * rank)
    if rank == 2 and step == 12 and is_first_round:
        os.kill(os.getpid(), signal.SIGKILL)
print(file=sys.stderr)
