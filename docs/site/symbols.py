"""Finds public symbols without a comment in Doxygen's XML.

Doxygen's own warnings leave out empty types and enumerators.
"""
import os
import xml.etree.ElementTree as xml

COMPOUNDS = ('class', 'struct', 'union')


def has_comment(element):
    return any(''.join(element.find(name).itertext()).strip()
               for name in ('briefdescription', 'detaileddescription') if element.find(name) is not None)


def is_private(element):
    return element.get('prot') == 'private'


def name_of(element):
    return element.findtext('qualifiedname') or element.findtext('compoundname') or element.findtext('name')


def place_of(element):
    location = element.find('location')
    return f'{location.get("file")}:{location.get("line")}:'


def undocumented(folder):
    """A line for each, with its place. In an enum, either each enumerator has a comment or none has."""
    found = set()
    for file in sorted(os.listdir(folder)):
        if not file.endswith('.xml') or file == 'index.xml':
            continue
        for compound in xml.parse(os.path.join(folder, file)).getroot().iter('compounddef'):
            if is_private(compound):
                continue
            if compound.get('kind') in COMPOUNDS and not has_comment(compound):
                found.add(f'{place_of(compound)} {name_of(compound)} is not documented')
            for member in compound.iter('memberdef'):
                if member.get('kind') == 'friend' or is_private(member):
                    continue
                values = member.findall('enumvalue')
                is_described = [has_comment(value) for value in values]
                if not has_comment(member):
                    found.add(f'{place_of(member)} {name_of(member)} is not documented')
                elif any(is_described):
                    found |= {f'{place_of(member)} {value.findtext("name")} is not documented'
                              for value, is_one in zip(values, is_described) if not is_one}
    return sorted(found)
