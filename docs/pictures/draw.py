#!/usr/bin/env python3
"""Draws the pictures of the documents as SVG, from the text files in this folder.

  ./draw.py            draws all pictures again
  ./draw.py --check    writes nothing; exit code 1 if a picture is not what its text file says

A text file begins with `sequence WIDTH` or `boxes WIDTH HEIGHT`, then has these lines (# begins a comment, and a line
that begins with | continues the one before it):

  title TEXT                   what the picture shows, for readers who can't see it
  actor NAME TEXT | TEXT       sequence: a column, with a second line below its name
  phase TEXT                   sequence: a heading
  A -> B: TEXT                 sequence: a message from column A to column B; `A <-> B` for both directions
  A: TEXT                      sequence: column A does something; `A..B` for all columns from A to B
  frame X Y W H TEXT           boxes: a large frame
  box X Y W H TEXT | TEXT      boxes: a box with a heading and further lines
  arrow X,Y X,Y ...            boxes: a line with an arrow at its end; `line` without one, `both` with two
  label X Y W TEXT             boxes: a text in the middle of X,Y, at most W wide

`...` in backticks is code. A text that does not fit is an error, so texts never overlap their boxes. A file that ends
in .cast is a recorded session of a terminal (asciicast version 2, by record.py).
"""

import html
import json
import pathlib
import re
import sys

FONT_SIZE, LINE_HEIGHT = 13, 17
STYLE = """
  .page { fill: #ffffff } .box { fill: #eef4fb; stroke: #4a76a8 } .note { fill: #fff7e0; stroke: #b08a2e }
  .frame { fill: none; stroke: #8a949e; stroke-dasharray: 5 4 } .life { stroke: #b6bec7; stroke-dasharray: 3 4 }
  .line { fill: none; stroke: #30363d; stroke-width: 1.4 } .tip { fill: #30363d } .phase { stroke: #b6bec7 }
  text { font: 13px "DejaVu Sans", Verdana, Helvetica, Arial, sans-serif; fill: #1f2328; text-anchor: middle }
  .head { font-weight: bold } .start { text-anchor: start } .code { font-family: "DejaVu Sans Mono", Menlo, monospace }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117 } .box { fill: #14253a; stroke: #5b91cf } .note { fill: #2f2810; stroke: #c9a23f }
    .frame { stroke: #7d8590 } .life, .phase { stroke: #484f58 } .line { stroke: #c9d1d9 } .tip { fill: #c9d1d9 }
    text { fill: #e6edf3 }
  }
"""

FRAMES_PER_SECOND = 4
TERMINAL_STYLE = """
  .page { fill: #f6f8fa; stroke: #d0d7de }
  text { font: 13px "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #1f2328; white-space: pre }
  .prompt { fill: #1a7f37; font-weight: bold } .past { visibility: hidden }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117; stroke: #30363d } text { fill: #e6edf3 } .prompt { fill: #3fb950 }
  }
"""


class Mistake(Exception):
    pass


def width_of(text, is_bold=False):
    """At least the width of the text in pixels, for the widest of the fonts (DejaVu Sans, Verdana)."""
    width, is_code = 0.0, False
    for letter in text:
        if letter == "`":
            is_code = not is_code
        elif is_code:
            width += 0.61
        elif letter in " .,:;'|!()[]/":
            width += 0.38
        elif letter in "iljtfrI":
            width += 0.40
        elif letter in "mwMWNOQGD%":
            width += 0.88
        else:
            width += 0.70 if letter.isupper() else 0.62
    return width * FONT_SIZE * (1.12 if is_bold else 1.0)


def wrapped(text, width, is_bold=False):
    """Lines of about the same length, as few as possible."""
    lines = filled(text, width, is_bold)
    for line in lines:
        if width_of(line, is_bold) > width:
            raise Mistake(f"does not fit into {width:.0f} pixels: {line}")
    best = lines
    while len(lines) == len(best) and max(width_of(line, is_bold) for line in lines) <= width:
        best, width = lines, max(width_of(line, is_bold) for line in lines) - 1
        lines = filled(text, width, is_bold)
    return best


def filled(text, width, is_bold):
    lines = [""]
    for word in text.split():
        longer = (lines[-1] + " " + word).strip()
        if width_of(longer, is_bold) <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def number(value):
    return f"{value:.1f}".rstrip("0").rstrip(".")


class Picture:
    def __init__(self, title, width):
        self.title, self.width, self.height, self.parts = title, width, 0, []

    def add(self, part):
        self.parts.append(part)

    def box(self, x, y, w, h, kind):
        self.add(f'<rect class="{kind}" x="{number(x)}" y="{number(y)}" width="{number(w)}" height="{number(h)}" '
                 'rx="5"/>')

    def text(self, x, y, line, kind=""):
        pieces = html.escape(line, quote=False).split("`")
        inside = "".join(f'<tspan class="code">{p}</tspan>' if i % 2 else p for i, p in enumerate(pieces))
        self.add(f'<text x="{number(x)}" y="{number(y)}"' + (f' class="{kind}"' if kind else "") + f">{inside}</text>")

    def texts(self, x, top, lines, kind=""):
        for i, line in enumerate(lines):
            self.text(x, top + i * LINE_HEIGHT + 13, line, kind)

    def label(self, x, top, lines):
        """Lines of text that hide what is behind them."""
        width = max(width_of(line) for line in lines) + 4
        self.add(f'<rect class="page" x="{number(x - width / 2)}" y="{number(top)}" width="{number(width)}" '
                 f'height="{len(lines) * LINE_HEIGHT}"/>')
        self.texts(x, top, lines)

    def tip(self, x, y, from_x, from_y):
        length = ((x - from_x) ** 2 + (y - from_y) ** 2) ** 0.5
        dx, dy = (x - from_x) / length, (y - from_y) / length
        points = [(x, y), (x - 9 * dx - 4 * dy, y - 9 * dy + 4 * dx), (x - 9 * dx + 4 * dy, y - 9 * dy - 4 * dx)]
        self.add('<polygon class="tip" points="' + " ".join(f"{number(a)},{number(b)}" for a, b in points) + '"/>')

    def line(self, points, tips):
        self.add('<polyline class="line" points="' + " ".join(f"{number(x)},{number(y)}" for x, y in points) + '"/>')
        if tips in ("end", "both"):
            self.tip(*points[-1], *points[-2])
        if tips == "both":
            self.tip(*points[0], *points[1])

    def svg(self, source, style=STYLE):
        size = f"{number(self.width)} {number(self.height)}"
        return ('<svg xmlns="http://www.w3.org/2000/svg" '
                f'viewBox="0 0 {size}" width="{number(self.width)}" role="img">\n'
                f"<!-- made by draw.py from {source} -->\n<title>{html.escape(self.title)}</title>\n"
                f'<style>{style}</style>\n<rect class="page" width="100%" height="100%" rx="8"/>\n'
                + "\n".join(self.parts) + "\n</svg>\n")


def two_parts(text):
    head, _, rest = text.partition("|")
    return head.strip(), [part.strip() for part in rest.split("|")] if rest else []


def draw_sequence(picture, lines):
    actors, gap = {}, 0
    rows = []
    for line in lines:
        if line.startswith("actor "):
            name, text = line[6:].split(maxsplit=1)
            actors[name] = two_parts(text)
        else:
            rows.append(line)
    gap = picture.width / len(actors)
    at = {name: gap * (i + 0.5) for i, name in enumerate(actors)}

    def column(name):
        if name not in at:
            raise Mistake(f"no actor is named {name}")
        return at[name]

    heads = {name: (wrapped(head, gap - 26, True), sum((wrapped(each, gap - 26) for each in more), []))
             for name, (head, more) in actors.items()}
    head_height = 14 + LINE_HEIGHT * max(len(a) + len(b) for a, b in heads.values())
    y, drawn = 12 + head_height + 14, []
    for row in rows:
        if row.startswith("phase "):
            y += 4
            drawn.append(("phase", y, row[6:]))
            y += 32
        elif message := re.fullmatch(r"(\w+) (<->|->) (\w+): (.*)", row):
            a, b = column(message[1]), column(message[3])
            text = wrapped(message[4], max(abs(a - b) - 14, gap - 14))
            drawn.append(("message", y, a, b, message[2], text))
            y += len(text) * LINE_HEIGHT + 20
        elif note := re.fullmatch(r"(\w+)(?:\.\.(\w+))?: (.*)", row):
            a, b = column(note[1]), column(note[2] or note[1])
            width = b - a + gap - 14
            text = wrapped(note[3], width - 14)
            drawn.append(("note", y, (a + b) / 2, width, text))
            y += len(text) * LINE_HEIGHT + 22
        else:
            raise Mistake(f"what is this? {row}")
    picture.height = y + 6
    for name, x in at.items():
        head, more = heads[name]
        picture.add(f'<line class="life" x1="{number(x)}" y1="{12 + head_height}" x2="{number(x)}" y2="{number(y)}"/>')
        picture.box(x - gap / 2 + 7, 12, gap - 14, head_height, "box")
        top = 12 + (head_height - LINE_HEIGHT * (len(head) + len(more))) / 2
        picture.texts(x, top, head, "head")
        picture.texts(x, top + LINE_HEIGHT * len(head), more)
    for kind, y, *rest in drawn:
        if kind == "phase":
            width = width_of(rest[0], True)
            picture.add(f'<line class="phase" x1="8" y1="{number(y + 9)}" x2="{number(picture.width - 8)}" '
                        f'y2="{number(y + 9)}"/>')
            picture.add(f'<rect class="page" x="14" y="{number(y)}" width="{number(width + 10)}" height="18"/>')
            picture.text(19, y + 13, rest[0], "head start")
        elif kind == "message":
            a, b, direction, text = rest
            picture.label((a + b) / 2, y, text)
            below = y + len(text) * LINE_HEIGHT + 4
            side = 1 if b > a else -1
            picture.line([(a, below), (b - side, below)], "both" if direction == "<->" else "end")
        else:
            x, width, text = rest
            picture.box(x - width / 2, y - 2, width, len(text) * LINE_HEIGHT + 10, "note")
            picture.texts(x, y + 2, text)


def draw_boxes(picture, lines):
    for line in lines:
        kind, rest = line.split(maxsplit=1)
        if kind in ("frame", "box"):
            x, y, w, h, text = rest.split(maxsplit=4)
            x, y, w, h = (float(value) for value in (x, y, w, h))
            picture.box(x, y, w, h, kind)
            head, more = two_parts(text)
            if kind == "frame":
                picture.text(x + 10, y + 20, wrapped(head, w - 20, True)[0], "head start")
                continue
            head = wrapped(head, w - 8, True)
            more = sum((wrapped(each, w - 8) for each in more), [])
            height = LINE_HEIGHT * (len(head) + len(more))
            if height > h - 6:
                raise Mistake(f"does not fit into {h} pixels: {text}")
            top = y + (h - height) / 2
            picture.texts(x + w / 2, top, head, "head")
            picture.texts(x + w / 2, top + LINE_HEIGHT * len(head), more)
        elif kind in ("arrow", "line", "both"):
            points = [tuple(float(value) for value in point.split(",")) for point in rest.split()]
            picture.line(points, {"arrow": "end", "line": "", "both": "both"}[kind])
        elif kind == "label":
            x, y, w, text = rest.split(maxsplit=3)
            text = wrapped(text, float(w))
            picture.label(float(x), float(y) - len(text) * LINE_HEIGHT / 2, text)
        else:
            raise Mistake(f"what is this? {line}")


class Screen:
    """A terminal that knows what ddprun uses: lines that wrap, and movements of the cursor. It leaves out colours."""

    def __init__(self, columns):
        self.columns, self.rows, self.row, self.column = columns, [""], 0, 0

    def put(self, letter):
        if self.column == self.columns:
            self.column = 0
            self.down()
        line = self.rows[self.row].ljust(self.column)
        self.rows[self.row] = line[:self.column] + letter + line[self.column + 1:]
        self.column += 1

    def down(self):
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append("")

    def show(self, text):
        for piece in re.findall(r"\x1b\[[0-9;]*[A-Za-z]|.", text, re.DOTALL):
            if piece == "\r":
                self.column = 0
            elif piece == "\n":
                self.down()
            elif len(piece) == 1:
                self.put(piece)
            elif piece[-1] == "A":
                self.row = max(self.row - int(piece[2:-1] or 1), 0)
            elif piece[-1] == "B":
                for _ in range(int(piece[2:-1] or 1)):
                    self.down()
            elif piece == "\x1b[K":
                self.rows[self.row] = self.rows[self.row][:self.column]
            elif piece[-1] != "m":
                raise Mistake(f"a movement of the cursor that draw.py does not know: {piece!r}")


def draw_terminal(source):
    """Each state of each line is a text that is visible for its time. Without animation, the last states show."""
    header, *events = (json.loads(line) for line in source.read_text().splitlines())
    screen = Screen(header["width"])
    states, changes = {}, []  # states: row -> (text, since); changes: (row, text, since, until)
    for i, (when, _, text) in enumerate(events):
        screen.show(text)
        frame = int(when * FRAMES_PER_SECOND)
        if i + 1 < len(events) and int(events[i + 1][0] * FRAMES_PER_SECOND) == frame:
            continue
        for row, line in enumerate(screen.rows):
            before, since = states.get(row, ("", 0))
            if line.rstrip() != before:
                changes.append((row, before, since, frame))
                states[row] = (line.rstrip(), frame)
    end = max(since for _, since in states.values()) + 6 * FRAMES_PER_SECOND
    changes += [(row, text, since, end) for row, (text, since) in states.items()]
    changes = sorted(change for change in changes if change[1])
    picture = Picture("A recorded session of a terminal: " + header["title"], header["width"] * 7.83 + 24)
    picture.height = (max(row for row, *_ in changes) + 1) * LINE_HEIGHT + 24
    frames = sorted({(since, until) for _, _, since, until in changes})
    moving = ""
    for i, (since, until) in enumerate(frames):
        last = "" if until == end else f"{100 * until / end:.1f}%, 100% {{ visibility: hidden }} "
        moving += (f"    @keyframes k{i} {{ 0% {{ visibility: hidden }} {100 * since / end:.1f}%, 100% "
                   f"{{ visibility: visible }} {last}}} "
                   f".k{i} {{ animation: k{i} {number(end / FRAMES_PER_SECOND)}s step-end infinite }}\n")
    for row, text, since, until in changes:
        kind = f"k{frames.index((since, until))}" + ("" if until == end else " past")
        line = html.escape(text, quote=False)
        if line.startswith("$ "):
            line = '<tspan class="prompt">$</tspan>' + line[1:]
        picture.add(f'<text x="12" y="{number(row * LINE_HEIGHT + 25)}" class="{kind}">{line}</text>')
    motion = "  @media (prefers-reduced-motion: no-preference) {\n" + moving + "  }\n"
    return picture.svg(source.name, TERMINAL_STYLE + motion)


def drawn(source):
    if source.suffix == ".cast":
        return draw_terminal(source)
    text = re.sub(r"\n\s*\|", " |", source.read_text())
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    kind, *size = lines[0].split()
    if not lines[1].startswith("title "):
        raise Mistake("the second line has no title")
    picture = Picture(lines[1][6:], float(size[0]))
    if kind == "sequence":
        draw_sequence(picture, lines[2:])
    else:
        picture.height = float(size[1])
        draw_boxes(picture, lines[2:])
    return picture.svg(source.name)


def main():
    is_check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not is_check:
        print(__doc__, file=sys.stderr)
        return 2
    code = 0
    folder = pathlib.Path(__file__).parent
    for source in sorted([*folder.glob("*.txt"), *folder.glob("*.cast")]):
        target = source.with_suffix(".svg")
        try:
            svg = drawn(source)
        except Mistake as mistake:
            print(f"docs/pictures/{source.name}: {mistake}")
            code = 1
            continue
        if not is_check:
            target.write_text(svg)
        elif not target.exists() or target.read_text() != svg:
            print(f"docs/pictures/{target.name}: not what {source.name} says; run docs/pictures/draw.py")
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
