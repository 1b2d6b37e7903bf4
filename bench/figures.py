#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes the charts out of a page of `tessera bench --html`, each as a picture of its own.

    figures.py PAGE PREFIX

writes PREFIX-speedup.svg, PREFIX-throughput.svg and PREFIX-roofline.svg, as far as the page has
these charts. They bring the page's colours along, for light and for dark screens.
"""
import re
import sys

NAMES = {"Measured speed-up": "speedup", "FLOP/s of": "throughput", "Roofline": "roofline"}
# What of the page's style charts use.
RULES = (r":root|@media|\.chart|\.halo|\.[thvm]\{|\.(grid|line|ideal|mean|mark|roof|bar|m)\b")


def style_of(page):
    style = re.search(r"<style>(.*?)</style>", page, re.S).group(1)
    rules = re.findall(r"@media[^{]*\{[^{}]*\{[^{}]*\}\}|[^{}]+\{[^{}]*\}", style)
    return "\n".join(r.strip() for r in rules if re.match(RULES, r.strip()))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        page = file.read()
    style = style_of(page)
    charts = re.findall(r'<svg class="chart" viewBox="0 0 (\S+) (\S+)"([^>]*)>(.*?)</svg>', page,
                        re.S)
    for width, height, attributes, body in charts:
        label = re.search(r'aria-label="([^"]*)"', attributes).group(1)
        name = next((n for start, n in NAMES.items() if label.startswith(start)), None)
        if not name:
            continue
        path = f"{sys.argv[2]}-{name}.svg"
        with open(path, "w", encoding="utf-8") as file:
            file.write(f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" width="{width}" '
                       f'height="{height}" viewBox="0 0 {width} {height}" '
                       f'font-family="system-ui, sans-serif"{attributes}>\n'
                       f"<style>\n{style}\n</style>\n"
                       f'<rect width="100%" height="100%" style="fill:var(--bg)"/>{body}</svg>\n')
        print(path)


if __name__ == "__main__":
    main()
