#!/usr/bin/env python3
"""Makes the documents and the API reference of libddp as HTML that is read without a server.

    build.py SOURCE OUTPUT VERSION [DOXYGEN]

The pages are in OUTPUT/html. In each, the field at the top finds symbols and titles; one page finds any words.
Exit code: 1 if a public symbol has no comment, a link leads nowhere, or Doxygen warns of
anything else; each is printed with its file and line.
"""
import os
import re
import shutil
import subprocess
import sys

import headers
import links
import pages
import symbols
import texts

HERE = os.path.dirname(os.path.abspath(__file__))

NAMESPACES = '''/**
@namespace ddp
The C++ interface of libddp. `#include <ddp/ddp.hpp>` has all of it except the namespace ddp::torch.

@namespace ddp::torch
For programs that use libtorch: `#include <ddp/torch.hpp>`.
*/
'''

FIND = '''/**
@page page_find Search all text
@htmlonly
{}
@endhtmlonly
*/
'''

# For a second run, which lists all symbols of the headers as XML, also those that have no page.
ALL_SYMBOLS = '''
FILE_PATTERNS = *.hpp *.h *.dox
USE_MDFILE_AS_MAINPAGE =
EXTRACT_ALL = YES
GENERATE_HTML = NO
GENERATE_XML = YES
XML_PROGRAMLISTING = NO
WARNINGS = NO
WARN_LOGFILE = /dev/null
'''


def find_inputs(root):
    """The Markdown pages and the headers, as paths in the repository."""
    found = []
    for top in ('docs', 'examples', 'include', 'README.md', 'CONTRIBUTING.md', 'CHANGELOG.md'):
        if os.path.isfile(os.path.join(root, top)):
            found.append(top)
        for folder, folders, files in os.walk(os.path.join(root, top)):
            folders.sort()
            found += [os.path.relpath(os.path.join(folder, file), root) for file in sorted(files)]
    headers = [path for path in found if path.startswith('include/') and path.endswith(('.h', '.hpp'))]
    return [path for path in found if path.endswith('.md')], headers


def read(path):
    with open(path, encoding='utf-8') as file:
        return file.read()


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, 'w', encoding='utf-8') as file:
        file.write(text)


def navigation(converter, index):
    """The tree beside each page: the sections of docs/README.md with the pages that they link to, then the API."""
    out = ['<doxygenlayout version="1.0">', '  <navindex>', '    <tab type="mainpage" visible="yes" title="ddprun"/>']
    listed = set()
    section = None
    if 'docs/README.md' in converter.pages:
        page = pages.page_id('docs/README.md')
        out.append(f'    <tab type="user" visible="yes" url="@ref {page}" title="Documents"/>')
    out.append('    <tab type="user" visible="yes" url="@ref page_find" title="Search all text"/>')
    for line in index.split('\n'):
        heading = re.match('## (.*)', line)
        if heading:
            out += ['    </tab>'] if section else []
            section = heading[1]
            out.append(f'    <tab type="usergroup" visible="yes" title="{section}">')
        for found in pages.LINK.finditer(line) if section else ():
            path = os.path.normpath(os.path.join('docs', found[3].partition('#')[0]))
            if path in converter.pages and path not in listed:
                listed.add(path)
                title = re.search('^# (.*)', read(os.path.join(converter.root, path)), re.M)[1].replace('`', '')
                title = title.replace('&', '&amp;').replace('"', '&quot;').replace('<', '&lt;')
                out.append(f'      <tab type="user" visible="yes" url="@ref {pages.page_id(path)}" title="{title}"/>')
    out += ['    </tab>'] if section else []
    out += ['    <tab type="usergroup" visible="yes" title="API reference">',
            '      <tab type="classlist" visible="yes" title="Classes and structs"/>',
            '      <tab type="user" visible="yes" url="@ref ddp" title="Functions and enums of C++"/>',
            '      <tab type="user" visible="yes" url="@ref ddp.h" title="The C interface"/>',
            '      <tab type="filelist" visible="yes" title="Headers"/>',
            '      <tab type="classmembers" visible="yes" title="Members"/>',
            '    </tab>',
            '    <tab type="pages" visible="no"/>',
            '  </navindex>', '</doxygenlayout>']
    return '\n'.join(out)


def main(root, output, version, doxygen='doxygen'):
    if not shutil.which(doxygen):
        print('error: doxygen is not installed\nwhere: the documents as HTML\n'
              'try:   deploy/install_packages.sh doxygen', file=sys.stderr)
        return 1
    for folder in ('input', 'html', 'xml'):
        shutil.rmtree(os.path.join(output, folder), ignore_errors=True)
    markdown, public_headers = find_inputs(root)
    converter = pages.Converter(root, markdown, public_headers)
    for page in markdown:
        write(os.path.join(output, 'input', page), converter.convert(page, read(os.path.join(root, page))))
    numbers = {}  # of the lines that Doxygen reads, in the header
    for header in public_headers:
        text, numbers[header] = headers.convert(read(os.path.join(root, header)), header)
        write(os.path.join(output, 'input', header), text)
    write(os.path.join(output, 'input/pages.dox'), NAMESPACES + FIND.format(read(os.path.join(HERE, 'find.html'))))
    index = os.path.join(root, 'docs/README.md')
    write(os.path.join(output, 'layout.xml'), navigation(converter, read(index) if os.path.exists(index) else ''))
    shutil.copy(os.path.join(HERE, 'style.css'), output)
    options = read(os.path.join(HERE, 'Doxyfile')) + f'PROJECT_NUMBER = {version}\n'
    write(os.path.join(output, 'Doxyfile'), options)
    write(os.path.join(output, 'Doxyfile.symbols'), options + ALL_SYMBOLS)

    for name in ('Doxyfile', 'Doxyfile.symbols'):
        done = subprocess.run([doxygen, name], cwd=output, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            print(f'error: doxygen ended with {done.returncode}\nwhere: {output}\ntry:   see what it printed above')
            return 1

    def in_source(found):
        path, line = found[1], int(found[2])
        known = numbers.get(path, [])
        return f'{path}:{known[line - 1] if line <= len(known) else line}:'
    prefix = re.escape(os.path.join(os.path.realpath(output), 'input')) + '/'
    undocumented = [line.removeprefix('input/') for line in symbols.undocumented(os.path.join(output, 'xml'))]
    findings = converter.errors
    findings += [re.sub(f'^(?:{prefix})?([^:]*):(\\d+):', in_source, line)
                 for line in read(os.path.join(output, 'warnings.txt')).split('\n') + undocumented if line]
    html = os.path.join(output, 'html')
    for folder, _, files in os.walk(html):
        for file in files:
            if file.endswith(('.html', '.js')):
                path = os.path.join(folder, file)
                write(path, pages.finish(read(path)))
    names = [name for name in sorted(os.listdir(html))
             if re.match(r'index\.|page_(?!find)|class|struct|namespace|.*_8hp*\.', name)
             and name.endswith('.html') and not name.endswith('-members.html')]
    write(os.path.join(html, 'find_texts.js'), texts.script(html, names))
    for path in links.files(html):
        if os.path.exists(os.path.join(root, path)):
            os.makedirs(os.path.dirname(os.path.join(html, 'files', path)), exist_ok=True)
            shutil.copy(os.path.join(root, path), os.path.join(html, 'files', path))
    findings += links.broken(html)
    for finding in findings:
        print(finding)
    if findings:
        print(f'error: {len(findings)} findings in the documents\nwhere: the lines above\n'
              'try:   write a comment for each symbol, and mend each link')
        return 1
    print(f'{os.path.join(html, "index.html")}: {len(markdown)} pages, {len(public_headers)} headers')
    return 0


if __name__ == '__main__':
    if len(sys.argv) not in (4, 5):
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    sys.exit(main(*sys.argv[1:]))
