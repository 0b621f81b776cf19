"""Draws recorded figures as curves in SVG; measures nothing. The same input gives the same bytes.

    curve.py CURVES.json --svg FILE

A file of curves (JSON) picks lines of recorded files. Its paths are relative to it. A recorded file has one JSON object
per line; other lines are skipped.

title, notes   text above the curves, and a list of lines below them
x, y           {field, label, unit}: the fields of a line that are drawn; a line without one of them is skipped. With
               `percent` true the values are shares
mark           a value of y across the whole drawing, such as a target; optional
series         list of {name, file}

The card and its styles are those of chart.py.
"""

import argparse
import json
import os

from chart import BARS, LEGEND, LETTER, LINE, MARGIN, MARK, NOTE, WIDTH, Svg, Wrong, check_keys, objects, round_step, \
    text_of

COLOURS = [BARS[0], "#d1741a", "#3f8f5b", "#8c9bab"]
TOP, HEIGHT, LEFT = 80.0, 320.0, 64.0


def read_curves(path):
    """The curves of a file, each series with `points`: pairs of x and y."""
    try:
        curves = json.loads(text_of(path))
    except json.JSONDecodeError as error:
        raise Wrong(f"{path}: it is not a file of curves: {error}") from error
    check_keys(path, "the curves", curves, {"title": str, "x": dict, "y": dict, "series": list},
               {"notes": list, "mark": float})
    for axis in ("x", "y"):
        check_keys(path, axis, curves[axis], {"field": str, "label": str}, {"unit": str, "percent": bool})
    names = [curves[axis]["field"] for axis in ("x", "y")]
    for series in curves["series"]:
        check_keys(path, "series", series, {"name": str, "file": str}, {})
        file = os.path.join(os.path.dirname(path), series["file"])
        lines = [line for line in objects(file) if all(name in line for name in names)]
        if not lines:
            raise Wrong(f"{file}: expected lines with `{'` and `'.join(names)}`, found none")
        series["points"] = [tuple(line[name] for name in names) for line in lines]
    return curves


def draw(curves):
    """The curves as the text of an SVG file."""
    series, notes = curves["series"], curves.get("notes", [])
    points = [point for one in series for point in one["points"]]
    most_x = max(x for x, _ in points) or 1
    most_y = 1.0 if curves["y"].get("percent") else max(max(y for _, y in points), curves.get("mark", 0)) or 1
    bottom, right = TOP + HEIGHT, WIDTH - MARGIN - 12
    svg = Svg(WIDTH, bottom + 56 + NOTE * len(notes))

    def x(value):
        return LEFT + value / most_x * (right - LEFT)

    def y(value):
        return bottom - value / most_y * HEIGHT

    def figure(value, axis):
        if curves[axis].get("percent"):
            return f"{value * 100:.0f} %"
        return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"

    svg.words(MARGIN, 28, "title", "start", curves["title"])
    for axis, most in (("x", most_x), ("y", most_y)):
        step = round_step(most, 4)
        for number in range(int(most / step + 1e-9) + 1):
            value = number * step
            if axis == "x":
                svg.line(x(value), TOP, x(value), bottom, 1, LINE)
                svg.words(x(value), bottom + 16, "muted", "middle", figure(value, axis))
            else:
                svg.line(LEFT, y(value), right, y(value), 1, LINE)
                svg.words(LEFT - 8, y(value) + 4, "muted", "end", figure(value, axis))
    if "mark" in curves:
        svg.line(LEFT, y(curves["mark"]), right, y(curves["mark"]), 2, MARK)
        svg.words(right, y(curves["mark"]) - 6, "muted", "end", figure(curves["mark"], "y"))
    at = MARGIN
    for one, colour in zip(series, COLOURS):
        svg.rect(at, LEGEND - 10, 12, 12, colour)
        svg.words(at + 18, LEGEND, "plain", "start", one["name"])
        at += 18 + len(one["name"]) * LETTER + 16
        for (from_x, from_y), (to_x, to_y) in zip(one["points"], one["points"][1:]):
            svg.line(x(from_x), y(from_y), x(to_x), y(to_y), 2, colour)
        for point in one["points"]:
            svg.rect(x(point[0]) - 2.5, y(point[1]) - 2.5, 5, 5, colour)
        last = one["points"][-1]
        svg.words(min(x(last[0]), right) - 4, y(last[1]) - 8, "bold", "end", figure(last[1], "y"))
    svg.words(WIDTH - MARGIN, LEGEND, "muted", "end", curves["y"]["label"])
    svg.words(right, bottom + 34, "muted", "end", curves["x"]["label"])
    for number, note in enumerate(notes):
        svg.words(MARGIN, bottom + 52 + NOTE * number, "muted", "start", note)
    return "\n".join([*svg.lines, "</svg>\n"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("curves", help="the file of curves")
    parser.add_argument("--svg", metavar="FILE", required=True, help="the drawing")
    given = parser.parse_args()
    try:
        drawing = draw(read_curves(given.curves))
    except Wrong as wrong:
        parser.exit(2, f"curve.py: {wrong}\n")
    with open(given.svg, "w", encoding="utf-8") as file:
        file.write(drawing)
    print(f"wrote {given.svg}")


if __name__ == "__main__":
    main()
