"""Checks the links between HTML pages in one folder: pages, files and anchors, and whether a page needs the network."""
import os
import urllib.parse
from html.parser import HTMLParser


class Page(HTMLParser):
    """The links of a page, with their lines, and the anchors in it."""

    def __init__(self, path):
        super().__init__()
        self.links = []
        self.anchors = set()
        self.needs_network = []  # lines with what a browser would load from elsewhere
        with open(path, encoding='utf-8') as file:
            self.feed(file.read())

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            is_loaded = name == 'src' or (name == 'href' and tag == 'link') or (name == 'data' and tag == 'object')
            if is_loaded and urllib.parse.urlsplit(value or '').netloc:
                self.needs_network.append((self.getpos()[0], value))
            if name == 'id' or (name == 'name' and tag == 'a'):
                self.anchors.add(value)
            elif value and (name in ('href', 'src') or (name == 'data' and tag == 'object')):
                self.links.append((self.getpos()[0], value))


def pages(folder):
    return {name: Page(os.path.join(folder, name)) for name in sorted(os.listdir(folder)) if name.endswith('.html')}


def files(folder):
    """The paths behind files/ that pages link to."""
    return {urllib.parse.unquote(url[len('files/'):].partition('#')[0])
            for page in pages(folder).values() for _, url in page.links if url.startswith('files/')}


def broken(folder):
    """A line for each link to what does not exist, and for what a page loads from elsewhere."""
    known = pages(folder)
    found = []
    for name, page in known.items():
        found += [f'{name}:{line}: {url} needs the network' for line, url in page.needs_network]
        for line, url in page.links:
            parts = urllib.parse.urlsplit(url)
            if parts.scheme or parts.netloc or url.startswith('javascript:'):
                continue
            target = urllib.parse.unquote(parts.path) or name
            anchor = urllib.parse.unquote(parts.fragment)
            if not os.path.exists(os.path.join(folder, target)):
                found.append(f'{name}:{line}: there is no {target}')
            elif anchor and target in known and anchor not in known[target].anchors:
                found.append(f'{name}:{line}: {target} has no anchor {anchor}')
    return found
