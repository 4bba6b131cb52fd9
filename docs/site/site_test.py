#!/usr/bin/env python3
"""Tests of the documents as HTML: those of this repository, and small ones with planted mistakes.

Takes half a minute.
"""
import contextlib
import glob
import io
import os
import re
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
import build  # noqa: E402
import links  # noqa: E402
import texts  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(build.HERE))
HEADER = '''// Adds numbers.
#pragma once

namespace ddp {

%s

}  // namespace ddp
'''
HEADERS = {  # what each repository has
    'include/ddp/ddp.h': '/* The C interface. */\n\n/* A status. */\ntypedef int ddp_status;\n',
    'include/ddp/first.hpp': HEADER % '// Holds.\nclass First {\n public:\n  void fill();  // all of it\n};',
}
UNDOCUMENTED = {
    'class': 'class Planted {};',
    'function': 'void planted();',
    'function template': 'template <class T>\nvoid planted(T value);',
    'enum': 'enum class Planted {\n  one,  // the first\n};',
    'enumerator': '// Numbers.\nenum class Planted {\n  one,  // the first\n  two,\n};',
    'type': 'using planted = int;',
    'constant': 'constexpr int planted = 1;',
    'member function': '// Holds.\nclass Box {\n public:\n  void planted();\n};',
    'constructor': '// Holds.\nclass Planted {\n public:\n  explicit Planted(int size);\n};',
    'field': '// Holds.\nstruct Box {\n  int planted = 0;\n};',
    'struct in a struct': '// Holds.\nstruct Box {\n  struct Planted {};\n};',
    'function after a blank line': '// Adds.\nvoid add();\n\nvoid planted();',
    'macro': '#define Planted 1',
}


def made(files):
    """The exit code, what was printed, and the text of each page, for a repository of these files."""
    with tempfile.TemporaryDirectory() as root, tempfile.TemporaryDirectory() as output:
        for path, text in {'README.md': '# ddprun\n', **HEADERS, **files}.items():
            build.write(os.path.join(root, path), text)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = build.main(root, output, '1.2.3')
        found = {os.path.relpath(path, os.path.join(output, 'html')): build.read(path)
                 for kind in ('html', 'js') for path in glob.glob(f'{output}/html/**/*.{kind}', recursive=True)}
        return code, printed.getvalue(), found


class Site(unittest.TestCase):
    def is_refused(self, files, *wanted):
        code, printed, _ = made(files)
        self.assertEqual(code, 1, printed)
        for each in wanted:
            self.assertIn(each, printed)

    def is_made(self, files):
        code, printed, pages = made(files)
        self.assertEqual(code, 0, printed)
        return pages

    def test_repository_is_documented_and_has_no_broken_link(self):
        with tempfile.TemporaryDirectory() as output:
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                code = build.main(ROOT, output, '1.2.3')
            self.assertEqual(code, 0, printed.getvalue())
            html = os.path.join(output, 'html')
            self.assertIn('1.2.3', build.read(os.path.join(html, 'index.html')))
            # All that the headers declare for programs, with its comment.
            for page in ('classddp_1_1ProcessGroup', 'classddp_1_1DistributedDataParallel', 'namespaceddp', 'ddp_8h',
                         'classddp_1_1torch_1_1DistributedDataParallel', 'structddp__tensor', 'page_docs_exit_codes'):
                self.assertTrue(os.path.exists(os.path.join(html, page + '.html')), page)
            sections = texts.parse(build.read(os.path.join(html, 'find_texts.js')))
            self.assertGreater(len(sections), 500)
            known = links.pages(html)
            for url, page, title, _ in sections:
                name, _, anchor = url.partition('#')
                self.assertTrue(name in known and (not anchor or anchor in known[name].anchors), (url, page, title))
            search = ''.join(build.read(path) for path in glob.glob(f'{html}/search/*.js'))
            for word in ('all_reduce', 'DistributedSampler', 'ddp_all_reduce', 'Exit codes of ddprun'):
                self.assertIn(word, search)

    def test_undocumented_symbol_is_an_error_with_its_line(self):
        files, wanted = {}, []
        for i, code in enumerate(UNDOCUMENTED.values()):
            text = (HEADER % code).replace('lanted', f'lanted{i}').replace('Box', f'Box{i}')
            line = [number for number, each in enumerate(text.split('\n'), 1) if f'lanted{i}' in each][-1]
            files[f'include/ddp/{i}.hpp'] = text
            wanted.append(f'include/ddp/{i}.hpp:{line}: ')
        code, printed, _ = made(files)
        self.assertEqual(code, 1, printed)
        for what, place in zip(UNDOCUMENTED, wanted):
            with self.subTest(what):
                self.assertRegex(printed, f'(?m)^{re.escape(place)}.* is not documented$')
        self.assertIn(f'error: {len(UNDOCUMENTED)} findings', printed)

    def test_undocumented_symbol_of_c_is_an_error(self):
        self.is_refused({'include/ddp/a.h': '/* Adds. */\n\nint planted(void);\n\ntypedef int planted_type;\n\n'
                                            '/* Holds. */\nstruct box {\n  int planted_field;\n};\n'},
                        'a.h:3: planted is not', 'a.h:5: planted_type is not', 'a.h:9: box::planted_field is not')

    def test_comment_behind_and_above_documents(self):
        pages = self.is_made({'include/ddp/a.hpp': HEADER % '''// Holds numbers.
struct Box {
  int size = 0;  // how many numbers,
                 // and none is below 0
  int low, high;  // the bounds
  Box(const Box& other);
  ~Box();

  // Fills it, and `all` of it:
  //   box.fill(1);
  //
  // Ways:
  //   fast  takes memory
  //   slow  takes
  //         time
  // Threads: "fill.<n>" is one.
  void fill(int value);
  void fill(long value);
};'''})
        html = pages['structddp_1_1Box.html']
        page = re.sub('<[^>]*>', '', html)
        self.assertRegex(html, r'<li><b>fast</b> takes memory</li>\s*<li><b>slow</b> takes time</li>')
        for text in ('Holds numbers.', 'how many numbers, and none is below 0', 'box.fill(1);', 'Copies.',
                     'Threads: "fill.&lt;n&gt;" is one.'):
            self.assertIn(text, page)
        self.assertEqual(page.count('the bounds'), 2)
        self.assertGreaterEqual(page.count('Fills it, and all of it'), 2)

    def test_what_is_hidden_needs_no_comment(self):
        pages = self.is_made({'include/ddp/a.hpp': HEADER % '''namespace detail {
struct Hidden { int field; };
}  // namespace detail

// Holds.
class Box {
 private:
  int hidden_;
};'''})
        self.assertNotIn('hidden', pages['classddp_1_1Box.html'].lower())

    def test_broken_links_are_errors_with_their_line(self):
        for link, wanted in {'docs/absent.md': 'there is no docs/absent.md',
                             'docs/a.md#absent': 'docs/a.md has no heading #absent',
                             'pictures/absent.svg': 'there is no pictures/absent.svg'}.items():
            with self.subTest(link):
                self.is_refused({'docs/a.md': '# A\n', 'README.md': f'# ddprun\n\nSee [this]({link}).\n'},
                                'README.md:3: ', wanted)

    def test_page_that_loads_from_the_network_is_an_error(self):
        self.is_refused({'README.md': '# ddprun\n\n![A picture](https://example.com/a.svg)\n'}, 'needs the network')

    def test_links_and_pictures_lead_to_their_copies(self):
        pages = self.is_made({'README.md': '# ddprun\n\n[Two](docs/a.md#part-two), [`run.sh`](run.sh), ![All](a.svg)\n',
                              'docs/a.md': '# A\n\n## Part two\n', 'run.sh': 'true\n', 'a.svg': '<svg/>\n'})
        page = pages['index.html']
        for text in ('page_docs_a.html#page_docs_a__part_two', 'href="files/run.sh"', 'src="files/a.svg"'):
            self.assertIn(text, page)

    def test_all_text_can_be_searched(self):
        pages = self.is_made({'docs/a.md': '# A\n\nOne.\n\n## Part two\n\nWords with `code`.\n',
                              'include/ddp/a.hpp': HEADER % '// Adds numbers\n// of all ranks.\nvoid add(int number);'})
        found = texts.parse(pages['find_texts.js'])
        self.assertIn(['page_docs_a.html#page_docs_a__part_two', 'A', 'Part two', 'Words with code.'], found)
        self.assertTrue([each for each in found if each[3] == 'void add (int number) Adds numbers of all ranks.'])
        self.assertIn('find_texts.js', pages['page_find.html'])

    def test_text_of_a_page_arrives_as_it_is(self):
        pages = self.is_made({'README.md': r'''# ddprun

| option | meaning |
| --- | --- |
| `--on=a\|b` | `"` and `\` stay, and so do @home, 5% of #3 and a::b. |
| `-x 'NAME*'` | Not `one's`. |
'''})
        page = re.sub('<[^>]*>', '', pages['index.html']).replace('&#39;', "'").replace('&quot;', '"')
        for text in ('--on=a|b', '" and \\ stay, and so do @home, 5% of #3 and a::b.', "-x 'NAME*'",
                     "Not one's."):
            self.assertIn(text, page)
        self.assertEqual(pages['index.html'].count('<tr class="markdownTableRow'), 2)


if __name__ == '__main__':
    unittest.main()
