"""Turns a Markdown page of the repository into one that Doxygen reads.

Links between pages become references of Doxygen. A link to a header leads to its page. Any other file of the repository
is copied beside the pages, as files/PATH, if a page links to it.

Doxygen takes a | in the code of a table's cell for the end of the cell, and a backslash at the end of code for the
beginning of a command. A single " in code begins a long word. Code in the text of a link stays as it is written.
Characters that no page has stand for these, until finish() reads what Doxygen wrote.
"""
import os
import re

FENCE = re.compile(r' *(```+|~~~+)')
CODE_SPAN_KEPT = re.compile('\0(\\d+)\0')
CODE_SPAN = re.compile(r'(``.+?``|`[^`]+`)')
LINK = re.compile(r'(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+(?:\([^()]*\))?[^()\s]*)(?: "[^"]*")?\)')
BOLD = re.compile(r'\*\*((?:(?!\n\n|\*\*).)+)\*\*', re.S)  # Doxygen knows it only between certain characters
TABLE_RULE = re.compile(r' *\|[-| :]+\|$', re.M)
COMMANDS = re.compile(r'(?<!\\)[@%&#]|\\(?![|\\])|(?<!<)<(?![a-zA-Z/!])|(?<!\\)--+|(?<=\s)::')
PIPE, CODE, CODE_END, BACKSLASH, QUOTE = '\ue000', '\ue001', '\ue002', '\ue003', '\ue004'


def finish(html):
    for character, meant in ((PIPE, '|'), (CODE, '<code>'), (CODE_END, '</code>'), (BACKSLASH, '\\'),
                              (QUOTE, '&quot;')):
        html = html.replace(character, meant)
    return html


def page_id(path):
    return 'page_' + re.sub(r'\W', '_', re.sub(r'\.md$', '', path))


def slug(title):
    """The anchor that GitHub makes of a heading."""
    title = LINK.sub(r'\2', title).replace('`', '').strip().lower()
    return re.sub(r'[^\w\- ]', '', title).replace(' ', '-')


def anchor(path, name):
    return f'{page_id(path)}__{re.sub(chr(45), "_", name)}'


class Converter:
    def __init__(self, root, pages, headers):
        self.root = root
        self.pages = set(pages)
        self.headers = set(headers)
        self.errors = []
        self.anchors = {}  # of each page
        for page in pages:
            with open(os.path.join(root, page), encoding='utf-8') as file:
                self.anchors[page] = {name for name, _, _ in self.headings(file.read().split('\n'))}

    @staticmethod
    def headings(lines):
        """The anchor, the level and the line of each heading."""
        counts = {}
        fence = None
        for number, line in enumerate(lines):
            found = FENCE.match(line)
            if found:
                if fence is None:
                    fence = found[1]
                elif line.strip() == fence:
                    fence = None
                continue
            heading = re.match(r'(#+) (.*)', line)
            if fence is None and heading:
                name = slug(heading[2])
                count = counts.get(name, 0)
                counts[name] = count + 1
                yield (f'{name}-{count}' if count else name), len(heading[1]), number

    def target(self, page, number, url):
        """What Doxygen is given for a link of `page` to `url`."""
        if re.match(r'[a-z]+:', url):
            return url
        path, _, name = url.partition('#')
        path = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
        if path in self.pages:
            if name and name not in self.anchors[path]:
                self.errors.append(f'{page}:{number}: {path} has no heading #{name}')
            return '@ref ' + (anchor(path, name) if name else page_id(path))
        if not os.path.exists(os.path.join(self.root, path)):
            self.errors.append(f'{page}:{number}: there is no {path}')
            return '@ref ' + page_id(page)
        if path in self.headers:
            return f'@ref {path}'
        if os.path.isdir(os.path.join(self.root, path)):
            inside = os.path.join(path, 'README.md')
            if inside in self.pages:
                return '@ref ' + page_id(inside)
            self.errors.append(f'{page}:{number}: {path} is a folder without README.md; link to a file')
        return 'files/' + path

    def convert(self, page, text):
        lines = text.split('\n')
        headings = {number: (name, level) for name, level, number in self.headings(lines)}
        sections = sum(level == 2 for _, level in headings.values())
        out = []
        prose = []  # lines that are no code block
        kept = []   # what is not to be escaped

        def keep(text):
            kept.append(text)
            return f'\0{len(kept) - 1}\0'

        def restore(text):
            while '\0' in text:
                text = re.sub('\0(\\d+)\0', lambda found: kept[int(found[1])], text)
            return text

        def end_prose():
            if not prose:
                return
            first = len(out)
            text = CODE_SPAN.sub(code, '\n'.join(prose))

            def link(found):
                number = first + text.count('\n', 0, found.start()) + 1
                url = self.target(page, number, found[3])
                if found[1]:
                    return keep(f'<img src="{url}" alt="{restore(found[2])}"/>')
                return f'[{CODE_SPAN_KEPT.sub(link_code, found[2])}{keep(f"]({url})")}'
            text = BOLD.sub(lambda found: keep('<b>') + found[1] + keep('</b>'), text)
            converted = LINK.sub(link, TABLE_RULE.sub(lambda found: keep(found[0]), text))
            converted = COMMANDS.sub(lambda found: '\\' + found[0], converted)
            out.extend(restore(converted).split('\n'))
            prose.clear()

        def code(found):
            text = re.sub(r'\\(?=`+$)', BACKSLASH, found[0].replace('\\|', PIPE))
            if text.count('"') % 2:
                text = text.replace('"', QUOTE)  # the text up to the next quote is one word otherwise
            if "'" in text and not text.startswith('``'):
                text = f'`{text}`'  # Doxygen takes `code' for a quotation
            return keep(text)

        def link_code(found):
            text = kept[int(found[1])].strip('`')
            return keep(CODE + re.sub(r'[^\w\s.,:/()_\ue000]', lambda c: '\\' + c[0], text) + CODE_END)

        fence = None
        for number, line in enumerate(lines):
            found = FENCE.match(line)
            if found and fence is None:
                end_prose()
                fence = found[1]
                out.append(line)
            elif fence is not None:
                if found and line.strip() == fence:
                    fence = None
                out.append(line)
            elif number in headings:
                name, level = headings[number]
                name = page_id(page) if level == 1 else anchor(page, name)
                prose.append(f'{"#" * level} '.replace('#', keep('#')) + line[level + 1:] + keep(f' {{#{name}}}'))
                if level == 1:
                    prose[-1] = prose[-1].replace('`', '')  # the tree of pages would show tags
                if level == 1 and sections >= 3 and page != 'README.md':
                    prose.append(keep('\n[TOC]\n'))
            else:
                prose.append(line)
        end_prose()
        return '\n'.join(out)
