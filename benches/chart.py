"""Draws recorded figures as horizontal bars in SVG; measures nothing. The same input gives the same bytes.

    chart.py CHART.json --svg FILE

A chart file (JSON) picks lines of recorded files. Its paths are relative to it. A recorded file has one JSON object per
line; other lines are skipped.

title, notes   text above the bars, and a list of lines below them
unit           of all values
over           name of the series by which the first one's values are divided; the ratio is printed beside its bars;
               optional
groups         list of {label, detail, key}: `key` is a list of values that pick a line in each series
series         list of {name, file, where, key, value, as}: the lines of `file` in which every field has the value that
               `where` gives; `key` names the fields that hold a group's key, `value` the field that is shown; `as` is
               `bar` (the default) or `mark`: a mark across the bars of its group, for a bound

The card and its styles are those of crates/core/src/out/svg.rs, which draws the other pictures.
"""

import argparse
import json
import math
import os
import sys
import unicodedata

INK, MUTED, LINE, MARK = "#24292f", "#57606a", "#d0d7de", "#d1741a"
# Colours of the bars, by series.
BARS = ["#2f6db3", "#8c9bab", "#c3ccd5", "#dfe4ea"]
WIDTH, MARGIN = 900.0, 20.0
# Distance from the top to the legend, and to the first group.
LEGEND, TOP = 54.0, 80.0
BAR, BETWEEN_BARS, BETWEEN_GROUPS = 14.0, 3.0, 16.0
# Height of a group's two lines of text, and of a note.
LABEL_HEIGHT, NOTE = 30.0, 17.0
# The fewest steps between the grid lines.
FEWEST_STEPS = 4
# Upper estimate of a letter's width at 12 px, as fonts differ.
LETTER = 7.6


class Wrong(Exception):
    """An input that cannot be drawn: file, field, what was expected and what was found."""


def text_of(path):
    try:
        with open(path, encoding="utf-8-sig") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise Wrong(f"{path}: cannot read: {error}") from error


def check_keys(path, where, given, required, optional):
    """`given` is an object with all of `required` and nothing beyond `optional`; values have the types named."""
    known = {**required, **optional}
    if not isinstance(given, dict):
        raise Wrong(f"{path}: {where}: expected an object, found {json.dumps(given)}")
    for name, value in given.items():
        if name not in known:
            raise Wrong(f"{path}: {where}: expected one of {', '.join(known)}, found `{name}`")
        if not isinstance(value, known[name]):
            raise Wrong(f"{path}: {where}: `{name}`: expected {known[name].__name__}, found {json.dumps(value)}")
    for name in required:
        if name not in given:
            raise Wrong(f"{path}: {where}: expected `{name}`, found nothing")


def read_chart(path):
    """The chart of a file, each series with `values`: one for each group."""
    try:
        chart = json.loads(text_of(path))
    except json.JSONDecodeError as error:
        raise Wrong(f"{path}: it is not a chart file: {error}") from error
    check_keys(path, "the chart", chart, {"title": str, "unit": str, "groups": list, "series": list},
               {"notes": list, "over": str})
    if not chart["groups"] or not chart["series"]:
        raise Wrong(f"{path}: it is not a chart file: it needs at least one group and one series")
    for group in chart["groups"]:
        check_keys(path, "groups", group, {"label": str, "detail": str, "key": list}, {})
    for series in chart["series"]:
        check_keys(path, "series", series, {"name": str, "file": str, "key": list, "value": str},
                   {"where": dict, "as": str})
        if series.setdefault("as", "bar") not in ("bar", "mark"):
            raise Wrong(f"{path}: `as`: expected bar or mark, found {series['as']}")
        file = os.path.join(os.path.dirname(path), series["file"])
        lines = [line for line in objects(file) if all(holds(line, *one) for one in series.get("where", {}).items())]
        series["values"] = [value(file, series, lines, group["key"]) for group in chart["groups"]]
    if "over" in chart and not any(series["name"] == chart["over"] for series in chart["series"]):
        raise Wrong(f"{path}: `over`: expected the name of a series, found {chart['over']}")
    return chart


def objects(path):
    try:
        return [json.loads(line) for line in text_of(path).splitlines() if line.startswith("{")]
    except json.JSONDecodeError as error:
        raise Wrong(f"{path}: a line is not a JSON object: {error}") from error


def holds(line, name, wanted):
    return name in line and line[name] == wanted


def value(path, series, lines, key):
    """The value of the one line of a series that has a group's key."""
    names = series["key"]
    found = [line for line in lines if len(names) == len(key) and all(map(lambda n, v: holds(line, n, v), names, key))]
    if len(found) != 1:
        raise Wrong(f"{path}: `{', '.join(names)}`: expected one line for each group, "
                    f"found {len(found)} for {json.dumps(key)} of series `{series['name']}`")
    number = found[0].get(series["value"])
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not number >= 0:
        shown = json.dumps(number) if series["value"] in found[0] else "nothing"
        raise Wrong(f"{path}: `{series['value']}`: expected a number that is not negative, found {shown}")
    return float(number)


def escaped(text):
    """Escapes text for XML; characters that XML does not allow are replaced."""
    entities = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "\ufffe": "\ufffd", "\uffff": "\ufffd"}
    return "".join("\ufffd" if unicodedata.category(c) == "Cc" else entities.get(c, c) for c in text)


def plain(number):
    """`900` or `1.5`: as few digits as tell the number."""
    return repr(number).removesuffix(".0")


class Svg:
    """A drawing being written. Coordinates are in pixels from the top left."""

    def __init__(self, width, height):
        size, inner = (plain(width), plain(height)), (plain(width - 1), plain(height - 1))
        self.lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" '
            f'width="{size[0]}" height="{size[1]}">',
            # A white edge keeps text readable where a line crosses it.
            f"<style>text{{font:12px sans-serif;fill:{INK};stroke:#fff;stroke-width:3px;stroke-linejoin:round;"
            f"paint-order:stroke}}.muted{{fill:{MUTED}}}.bold{{font-weight:bold}}"
            ".inverse{font-weight:bold;fill:#fff;stroke:none}.title{font-size:16px;font-weight:bold}</style>",
            f'<rect x="0.5" y="0.5" width="{inner[0]}" height="{inner[1]}" rx="6" fill="#fff" stroke="{LINE}"/>',
        ]

    def rect(self, x, y, width, height, fill):
        self.lines.append(f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" fill="{fill}"/>')

    def line(self, x, y, to_x, to_y, width, colour):
        self.lines.append(f'<path d="M{x:.2f} {y:.2f}L{to_x:.2f} {to_y:.2f}" stroke="{colour}" '
                          f'stroke-width="{width}"/>')

    def words(self, x, y, font, anchor, words):
        self.lines.append(f'<text x="{x:.1f}" y="{y:.1f}" class="{font}" text-anchor="{anchor}">'
                          f"{escaped(words)}</text>")


def round_step(most, least):
    """The largest of 1, 2 and 5 times a power of ten of which `most` has at least `least` steps.

    >>> [round_step(most, 4) for most in (36000, 1600, 4, 9.9, 0)]
    [5000.0, 200.0, 1.0, 2.0, 1.0]
    """
    if most <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(most / least))
    return next((times * power for times in (5, 2, 1) if least * times * power <= most), power)


def draw(chart):
    """The chart as the text of an SVG file."""
    groups, series = chart["groups"], chart["series"]
    bars = [one for one in series if one["as"] == "bar"]
    marks = [one for one in series if one["as"] == "mark"]
    over = next((one for one in series if one["name"] == chart.get("over")), None)
    most = max(value for one in series for value in one["values"])

    def figure(value):
        """As an integer if the chart's values are large, else with one decimal."""
        return f"{math.floor(value + 0.5):,}" if most >= 100 else f"{value:.1f}"

    def said(one, group):
        """A bar's label: its value and, for the first series, the ratio to the series it is compared with."""
        value = one["values"][group]
        divided = over is not None and one is series[0] and over["values"][group] > 0
        return figure(value) + (f" ({value / over['values'][group]:.2f} x)" if divided else "")

    labels = [text for group in groups for text in (group["label"], group["detail"])]
    left = MARGIN + max(len(text) * LETTER for text in labels) + 12
    # Room for the value to the right of the longest bar.
    room = max(len(said(one, group)) * LETTER for one in series for group in range(len(groups))) + 6
    length = WIDTH - MARGIN - room - left
    height = max(len(bars) * (BAR + BETWEEN_BARS) - BETWEEN_BARS, LABEL_HEIGHT)
    bottom = TOP + len(groups) * (height + BETWEEN_GROUPS) - BETWEEN_GROUPS + 8
    end = max(most, sys.float_info.min)

    def x(value):
        return left + value / end * length

    notes = chart.get("notes", [])
    svg = Svg(WIDTH, bottom + 34 + NOTE * len(notes) + 8)
    svg.words(MARGIN, 28, "title", "start", chart["title"])
    at, colours = MARGIN, {}
    for one in series:
        if one["as"] == "bar":
            colours[id(one)] = BARS[len(colours) % len(BARS)]
            svg.rect(at, LEGEND - 10, 12, 12, colours[id(one)])
        else:
            svg.line(at + 6, LEGEND - 11, at + 6, LEGEND + 3, 2, MARK)
        svg.words(at + 18, LEGEND, "plain", "start", one["name"])
        at += 18 + len(one["name"]) * LETTER + 16
    svg.words(WIDTH - MARGIN, LEGEND, "muted", "end", chart["unit"])
    step = round_step(most, FEWEST_STEPS)
    for line in range(math.floor(end / step) + 1):
        svg.line(x(line * step), TOP - 6, x(line * step), bottom, 1, LINE)
        svg.words(x(line * step), bottom + 15, "muted", "middle", figure(line * step))
    for number, group in enumerate(groups):
        top = TOP + number * (height + BETWEEN_GROUPS)
        middle = top + height / 2
        svg.words(left - 12, middle - 2, "bold", "end", group["label"])
        svg.words(left - 12, middle + 13, "muted", "end", group["detail"])
        for place, one in enumerate(bars):
            svg.rect(left, top + place * (BAR + BETWEEN_BARS), max(x(one["values"][number]) - left, 1), BAR,
                     colours[id(one)])
        for one in marks:
            svg.line(x(one["values"][number]), top - 2, x(one["values"][number]), top + height + 2, 2, MARK)
        for place, one in enumerate(bars):
            svg.words(x(one["values"][number]) + 6, top + place * (BAR + BETWEEN_BARS) + BAR - 3,
                      "bold" if one is series[0] else "plain", "start", said(one, number))
    for number, note in enumerate(notes):
        svg.words(MARGIN, bottom + 44 + NOTE * number, "muted", "start", note)
    return "\n".join([*svg.lines, "</svg>\n"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chart", help="the chart file")
    parser.add_argument("--svg", metavar="FILE", required=True, help="the drawing")
    given = parser.parse_args()
    try:
        drawing = draw(read_chart(given.chart))
    except Wrong as wrong:
        parser.exit(2, f"chart.py: {wrong}\n")
    with open(given.svg, "w", encoding="utf-8") as file:
        file.write(drawing)
    print(f"wrote {given.svg}")


if __name__ == "__main__":
    main()
