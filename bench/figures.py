#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes the charts out of a page of `tessera bench --html`, each as a picture of its own.

    figures.py PAGE PREFIX

writes PREFIX-time-N.svg, PREFIX-speed-up-N.svg and PREFIX-roofline-1.svg, as many as the page has.
They bring the page's colours and marks along, for light and for dark screens.
"""
import html
import re
import sys

NAMES = ("Time", "Speed-up", "Roofline")
# What of the page's style charts use.
RULES = r":root|@media \(prefers|\.k\d|\.(halo|t|v|m|grid|line|band|ideal|roof|lead)\b"


def style_of(page):
    style = re.search(r"<style>(.*?)</style>", page, re.S).group(1)
    style = re.sub(r"/\*.*?\*/", "", style, flags=re.S).split("@media print")[0]
    rules = re.findall(r"@media[^{]*\{(?:[^{}]*\{[^{}]*\})*\s*\}|[^{}]+\{[^{}]*\}", style)
    return "\n".join(r.strip() for r in rules if re.match(RULES, r.strip()))


def quoted(markup):
    """Tags of HTML, where quotes may be left out, as XML wants them."""
    def value(match):
        return match.group(0) if match.group(1)[0] == '"' else f'="{match.group(1)}"'
    return re.sub(r"<[a-z][^>]*>", lambda tag: re.sub(r'=("[^"]*"|[^\s">]+?(?=\s|/?>))', value,
                                                     tag.group(0)), markup)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        page = file.read()
    style = style_of(page)
    marks = quoted(re.search(r"<defs id=\"?shapes\"?>.*?</defs>", page, re.S).group(0))
    charts = re.findall(r'<svg class="?chart"? viewBox="0 0 (\S+) (\S+)"([^>]*)>(.*?)</svg>', page,
                        re.S)
    counts = dict.fromkeys(NAMES, 0)
    for width, height, attributes, body in charts:
        attributes, body = quoted(f"<svg{attributes}>")[4:-1], quoted(body)
        label = html.unescape(re.search(r'aria-label="([^"]*)"', attributes).group(1))
        name = next((n for n in NAMES if label.startswith(n)), None)
        if not name:
            continue
        counts[name] += 1
        path = f"{sys.argv[2]}-{name.lower()}-{counts[name]}.svg"
        with open(path, "w", encoding="utf-8") as file:
            file.write(f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" width="{width}" '
                       f'height="{height}" viewBox="0 0 {width} {height}" '
                       f'font-family="system-ui, sans-serif"{attributes}>\n'
                       f"<style>\n{style}\n</style>\n{marks}\n"
                       f'<rect width="100%" height="100%" style="fill:var(--bg)"/>{body}</svg>\n')
        print(path, label)


if __name__ == "__main__":
    main()
