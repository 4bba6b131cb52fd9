#!/usr/bin/env python3
"""Records a session of a terminal, as asciicast version 2. draw.py makes a picture of it.

  PATH=build/release/bin:$PATH docs/pictures/record.py docs/pictures/recording docs/pictures/terminal.cast

Runs the lines of recording/commands in that folder, each in a terminal of its own. Writes what they print, and when.
"""

import fcntl
import json
import os
import pathlib
import pty
import struct
import sys
import termios
import time

COLUMNS, ROWS = 96, 24
PROMPT = "\x1b[1;32m$\x1b[0m "


def main():
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    folder, target = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    events, begin, pauses = [], time.monotonic(), 0.0

    def record(text):
        events.append([round(time.monotonic() - begin + pauses, 3), "o", text])

    for command in (folder / "commands").read_text().splitlines():
        record(PROMPT)
        pauses += 0.5
        for letter in command:  # as if somebody typed it
            record(letter)
            pauses += 0.02
        record("\r\n")
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(folder)
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
            os.execvp("sh", ["sh", "-c", "exec " + command])
        while True:
            try:
                data = os.read(terminal, 65536)
            except OSError:  # how a pseudo-terminal says that its last process has ended
                break
            if not data:
                break
            record(data.decode())
        os.waitpid(pid, 0)
        pauses += 1.5
    with target.open("w") as file:
        file.write(json.dumps({"version": 2, "width": COLUMNS, "height": ROWS, "title": "ddprun"}) + "\n")
        for event in events:
            file.write(json.dumps(event) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
