"""Turns the comments of a C++ or C header into comments that Doxygen reads.

The headers have plain comments. These rules say what a comment documents:
- The comment at the top of a file is of the file.
- A comment above a declaration is of this declaration, and of the functions and enums after it that have no comment, up
  to the next blank line.
- A comment behind a declaration is of this declaration. It may go on below, in the same column.
- In C headers, `/* --- Title --- */` begins a section. A comment after it, between blank lines, describes the section.
- A comment behind two variables is of both.
- Copying, moving and destroying need no comment.
In a comment, lines that are indented by two spaces or more are code. They are a list if they begin with `-`, a number,
or a word in a column of its own. `Label:  text` begins an item of a list, except in the first line: the summary.
"""
import re

MARKER = re.compile(r'(?:\d+\.|-) ')
WORD = re.compile(r'(\w+) {2,}(?=\S)')
LABEL = re.compile(r'([A-Z][A-Za-z]+(?: [a-z]+){0,2}|[a-z_]{3,}): +(?=\S)')
TYPE_HEAD = re.compile(r'(?:typedef\s+)?(class|struct|union|enum)\b')
SPECIAL = re.compile(r'(?:virtual\s+)?(?:(?P<destroy>~\w+\(\))'
                     r'|(?P<name>\w+)\((?P<kind>const (?P=name)|(?P=name)&)&?\s*\w*\)'
                     r'|\w+& operator=\((?P<assign>const \w+|\w+&)&?\s*\w*\))')
TWO_VARIABLES = re.compile(r'( *[A-Za-z][\w:<> ]*) (\w+), (\w+); +(///<.*)')
CODE_SPAN = re.compile(r'(`[^`]+`|"[^"]*")')
COMMANDS = re.compile(r'[\\@<>&#%*]|--+|(?<!\w)::|(?<!\w)_|_(?!\w)')
ONE_WORD = re.compile(r'([A-Z]\w*)\. (?=\w)')  # Doxygen would take such a sentence alone for the summary


def escape(text):
    """Text in which Doxygen finds no commands, HTML or emphasis outside of `code`."""
    parts = CODE_SPAN.split(text)
    parts[::2] = [COMMANDS.sub(lambda found: '\\' + found[0], part) for part in parts[::2]]
    return ''.join(parts)


def to_doxygen(lines):
    """The lines of a comment, without their slashes, as Doxygen's Markdown. A line may become two."""
    out = []
    in_item = in_code = in_list = False  # a list: indented lines that begin with -, a number, or a word in a column
    for line in lines:
        indent = len(line) - len(line.lstrip())
        text = line.strip()
        label = LABEL.match(text) if indent == 0 else None
        starts_paragraph = not out or not out[-1] or in_item
        if in_code and (text == '' or indent < 2):
            # A blank line within code stays there only if more code follows; Doxygen shows two blocks otherwise.
            out[-1] += ' @endcode'
            in_code = False
        if text == '':
            in_item = in_list = False
            out.append('')
        elif indent >= 2 and not in_code and (MARKER.match(text) or (WORD.match(text) and (in_list or not in_item))):
            word = WORD.match(text)
            begin = '' if in_list or not out else '\n'
            out.append(begin + (f'- **{escape(word[1])}** {escape(text[word.end():])}' if word else escape(text)))
            in_item = in_list = True
        elif in_list and indent < 2:
            in_item = in_list = False
            out.append('\n' + escape(text))
        elif indent >= 2 and not in_item:
            if not in_code:
                if out:
                    out[-1] += ' @code{.cpp}'
                else:
                    out.append('@code{.cpp}')
                in_code = True
            out.append(line[2:])
        elif label and starts_paragraph:
            in_item = True
            # The first sentence is the summary, which can't be an item.
            out.append(f'- **{escape(label[1])}:** {escape(text[label.end():])}' if out else escape(text))
        else:
            out.append(('  ' if in_item else '') + (escape(text) if out else ONE_WORD.sub(r'\1.\\ ', escape(text))))
    if in_code:
        out[-1] += ' @endcode'
    return out


def commented(prefix, text):
    return [prefix + line for line in text.split('\n')]


def split_comment(line):
    """The code and the comment of a line; the comment is None if there is none."""
    quote = None
    i = 0
    while i < len(line):
        character = line[i]
        if quote:
            if character == '\\':
                i += 1
            elif character == quote:
                quote = None
        elif character == '"' or (character == "'" and not (i and line[i - 1].isalnum())):
            quote = character
        elif line.startswith('//', i):
            return line[:i], line[i + 2:]
        i += 1
    return line, None


def c_comments_to_cpp(lines):
    """The lines of a C header with // comments, as many lines as before."""
    out = []
    column = None  # of the comment that is open
    for line in lines:
        code = ''
        if column is None:
            start = line.find('/*')
            if start < 0:
                out.append(line)
                continue
            column = start
            code, text = line[:start], line[start + 2:]
        else:
            text = line[column + 2:] if line[:column + 2].strip() == '' else ' ' + line.strip()
        end = text.find('*/')
        if end >= 0:
            text = text[:end]
        out.append(f'{code or " " * column}//{text}'.rstrip())
        if end >= 0:
            column = None
    return out


class Scopes:
    """Which braces are open: of namespaces, types, or anything else."""

    def __init__(self):
        self.open = []
        self.head = ''  # of the declaration that is being read
        self.parentheses = 0

    def is_in_declarations(self):
        return all(kind != 'body' for kind in self.open)

    def is_at_start(self):
        """Whether the next code begins a declaration."""
        return self.is_in_declarations() and self.head.strip() == ''

    def read(self, code):
        code = re.sub(r'"(\\.|[^"\\])*"', '""', code)
        code = re.sub(r"(?<!\w)'(\\.|[^'\\])+'", "''", code)
        code = re.sub(r'^(\s*)(public|protected|private):', r'\1', code)
        for character in code:
            if character in '()':
                self.parentheses += 1 if character == '(' else -1
            if character == '{':
                self.open.append(self.kind())
                if self.open[-1] != 'body':
                    self.head = ''
            elif character == '}':
                kind = self.open.pop()
                if kind == 'body' and self.is_in_declarations() and '(' in self.head and not self.parentheses:
                    self.head = ''  # a function; what initialises a variable is followed by a semicolon
            elif character == ';' and self.is_in_declarations() and not self.parentheses:
                self.head = ''
            elif self.is_in_declarations():
                self.head += character
        if self.head:
            self.head += ' '
        if self.head.strip() == '' or 'enum' in self.open[-1:]:
            self.head = ''  # each line of an enum has enumerators of its own

    def kind(self):
        if not self.is_in_declarations() or self.parentheses:
            return 'body'
        head = without_template(self.head.strip())
        if re.match(r'(inline )?namespace\b|extern ""', head):
            return 'namespace'
        found = TYPE_HEAD.match(head)
        return found[1] if found else 'body'


def without_template(head):
    while head.startswith('template'):
        depth = 0
        for i, character in enumerate(head):
            depth += (character == '<') - (character == '>')
            if character == '>' and depth == 0:
                head = head[i + 1:].strip()
                break
        else:
            return head
    return head


def special_member(code):
    """What Doxygen is told of a copy, a move or the end of an object; None for any other code."""
    found = SPECIAL.match(code.strip())
    if not found:
        return None
    if found['destroy']:
        return 'Ends the object.'
    is_copy = (found['kind'] or found['assign']).startswith('const')
    if '= delete' in code:
        return "Can't be copied." if is_copy else "Can't be moved."
    return 'Copies.' if is_copy else 'Moves.'


def convert(text, path):
    """The text of the header `path` for Doxygen, and for each of its lines the line of the header."""
    is_c = path.endswith('.h')
    name = path.removeprefix('include/')
    lines = text.split('\n')
    if is_c:
        lines = c_comments_to_cpp(lines)
    lines = [re.sub(r'\[\[nodiscard\]\] ?|\bDDP_(C_)?EXPORT ', '', line) if not line.startswith('#') else line
             for line in lines]
    out = []
    numbers = []

    def emit(number, *texts):
        if number >= top_end:
            texts = tuple(each.replace('top of this file', f'top of {name}') for each in texts)
        if out and '///<' in out[-1] and texts[0].lstrip().startswith('/// '):
            texts = ('', *texts)  # Doxygen makes one comment of the two otherwise
        out.extend(texts)
        numbers.extend([number + 1] * len(texts))

    def comment_at(first):
        """The lines of a comment without code beside it, from line `first` on, and the line after it."""
        column = lines[first].index('//')
        block = []
        at = first
        while at < len(lines) and re.match(rf' {{{column}}}//', lines[at]):
            block.append(re.sub('^ ', '', lines[at][column + 2:]))
            at += 1
        return block, at

    at = top_end = 0
    if lines[0].startswith('//'):
        block, at = comment_at(0)
        top_end = at
        emit(0, '/// @file')
        for i, each in enumerate(to_doxygen(block)):
            emit(i, *commented('/// ', each))

    scopes = Scopes()
    documented = None      # the comment that counts until the next blank line
    is_commented = False   # the next declaration has a comment of its own
    in_section = False
    after_section = False  # nothing but blank lines since the section's title
    trailing_column = None
    while at < len(lines):
        line = lines[at]
        stripped = line.strip()
        if stripped == '':
            documented = None
            trailing_column = None
            emit(at, '')
            at += 1
        elif stripped in ('inline namespace DDP_ABI {', '}  // namespace DDP_ABI') or line.startswith('#'):
            if in_section and 'cplusplus' in line:
                emit(at, '///@}')
                in_section = False
            emit(at, line if line.startswith('#') else '')
            at += 1
        elif stripped.startswith('//'):
            if trailing_column is not None and line.index('//') == trailing_column:
                emit(at, f'{" " * trailing_column}///< {escape(stripped[2:].strip())}')
                at += 1
                continue
            trailing_column = None
            section = re.match(r'// --- (.*?) -+$', stripped)
            if section and is_c:
                if in_section:
                    emit(at, '///@}')
                emit(at, '/// @name ' + escape(section[1]), '///@{')
                in_section = after_section = True
                at += 1
                continue
            block, after = comment_at(at)
            indent = ' ' * line.index('//')
            is_floating = after < len(lines) and lines[after].strip() == ''
            if not scopes.is_at_start() and 'enum' not in scopes.open[-1:]:
                emit(at, *lines[at:after])
            elif is_floating and after_section:
                del out[-1], numbers[-1]
                while out[-1] != '///@{':
                    del out[-1], numbers[-1]
                del out[-1], numbers[-1]
                emit(at, '///', *commented('/// ', '\n'.join(to_doxygen(block))), '///@{')
            elif not is_floating:
                documented = (indent, to_doxygen(block))
                for i, each in enumerate(documented[1]):
                    emit(at + i, *commented(f'{indent}/// ', each))
                is_commented = True
            at = after
            after_section = False
        else:
            after_section = False
            code, comment = split_comment(line)
            if comment is not None and re.match(r' *(NOLINT|namespace\b)', comment):
                comment = None
            indent = re.match(' *', line)[0]
            if scopes.is_at_start():
                ahead = code + ' '.join(split_comment(each)[0] for each in lines[at + 1:at + 4])
                declaration = without_template(re.sub(r'\s+', ' ', ahead).strip())
                special = special_member(declaration)
                is_function = re.match(r'[^;{=]*\(', declaration) is not None or declaration.startswith('enum {')
                if is_commented or comment is not None:
                    pass
                elif special:
                    emit(at, f'{indent}/// {special}')
                elif documented and documented[0] == indent and is_function:
                    emit(at, *commented(f'{indent}/// ', '\n'.join(documented[1])))
                is_commented = False
            trailing_column = None
            if comment is not None and scopes.is_in_declarations():
                trailing_column = line.index('//', len(code))
                line = f'{code}///< {escape(comment.strip())}'
            scopes.read(code)
            two = TWO_VARIABLES.match(line)
            emit(at, *([f'{two[1]} {name};  {two[4]}' for name in (two[2], two[3])] if two else [line]))
            at += 1
    return '\n'.join(out), numbers
