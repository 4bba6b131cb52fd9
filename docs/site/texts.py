"""The text of HTML pages, in sections, for the page that searches all of it."""
import json
import os
from html.parser import HTMLParser

SECTIONS = ('h1', 'h2', 'h3')
BLOCKS = ('p', 'div', 'li', 'td', 'th', 'tr', 'br', 'pre', 'dt', 'dd', *SECTIONS)
NO_TEXT = ('script', 'style', 'title')


class Sections(HTMLParser):
    """[anchor, title, text] of each section in the contents of a page."""

    def __init__(self, path):
        super().__init__()
        self.sections = []
        self.anchor = ''
        self.is_contents = self.is_title = self.is_heading = False
        self.title = ''
        self.ignored = 0
        with open(path, encoding='utf-8') as file:
            self.feed(file.read())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if attributes.get('class') == 'contents':
            self.is_contents = True
            self.sections.append(['', '', ''])
        if attributes.get('id') == 'nav-path':
            self.is_contents = False  # the rest is the same on all pages
        if tag in NO_TEXT:
            self.ignored += 1
            self.is_title = tag == 'title'
        if not self.is_contents:
            return
        if tag == 'a' and attributes.get('id'):
            self.anchor = attributes['id']  # before the heading of a member, or in the heading of a section
            if self.is_heading:
                self.sections[-1][0] = self.anchor
        if tag in SECTIONS:
            self.sections.append([self.anchor, '', ''])
            self.is_heading = True
        if tag in BLOCKS:
            self.sections[-1][2] += ' '

    def handle_endtag(self, tag):
        if tag in NO_TEXT:
            self.ignored -= 1
            self.is_title = False
        if self.is_contents and tag in SECTIONS:
            section = self.sections[-1]
            section[1], section[2] = ' '.join(section[2].replace('\u25c6', '').split()), ''
            self.is_heading = False
            if section[1] == 'Table of Contents':
                section[1] = ''

    def handle_data(self, data):
        if self.is_title:
            self.title += data
        elif self.is_contents and not self.ignored:
            self.sections[-1][2] += data


def script(folder, names):
    """JavaScript that sets find_texts to [url, page, title, text] of each section of these pages."""
    found = []
    for name in names:
        page = Sections(os.path.join(folder, name))
        title = page.title.partition(': ')[2] or page.title
        for anchor, heading, text in page.sections:
            text = ' '.join(text.split())
            if text:
                found.append([f'{name}#{anchor}' if anchor else name, title, heading, text])
    return f'const find_texts = {json.dumps(found, ensure_ascii=False, indent=0)};\n'


def parse(script):
    """The list that script() wrote."""
    return json.loads(script[script.index('['):script.rindex(';')])
