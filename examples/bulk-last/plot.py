"""Draws two figures over the hours: delay of calls, and time that downloads took."""

COLOURS = {"none": "#888888", "bytes": "#e6a000", "static": "#cc4444", "learning": "#0072b2"}
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 260, 56, 90, 34, 40
FIGURES = (
    ("p95_ms", "95 of 100 packets of calls take less than this down the link, ms"),
    ("download_s", "Time a download takes, on average, s"),
)


def text(x, y, words, **attributes):
    given = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in attributes.items())
    return f'<text x="{x:.1f}" y="{y:.1f}"{given}>{words}</text>'


def figure(rows, key, title, first_new, top):
    """One figure, its upper edge at `top`."""
    hours = max(row["hour"] for row in rows)
    most = 1.1 * max(row[key] or 0 for row in rows) or 1
    base = top + HEIGHT - BOTTOM
    across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(hour):
        return LEFT + across * (hour - 1) / max(hours - 1, 1)

    def y(value):
        return base - down * value / most

    change = x(first_new - 0.5)
    parts = [
        text(LEFT, top + 18, title, font_weight="bold"),
        f'<path d="M{LEFT} {top + TOP}V{base}H{LEFT + across}" fill="none" stroke="black"/>',
        f'<path d="M{change:.1f} {top + TOP}V{base}" stroke="#bbbbbb" stroke-dasharray="4"/>',
        text(change + 4, top + TOP + 10, "new place", fill="#888888"),
        text(LEFT + across / 2, base + 32, "hour", text_anchor="middle"),
    ]
    for hour in range(1, hours + 1):
        parts.append(text(x(hour), base + 16, hour, text_anchor="middle"))
    for share in (0, 0.25, 0.5, 0.75, 1):
        value = most * share
        parts.append(text(LEFT - 6, y(value) + 4, f"{value:.3g}", text_anchor="end"))
    labels = []
    for way, colour in COLOURS.items():
        own = [(x(row["hour"]), y(row[key])) for row in rows if row["way"] == way and row[key]]
        if own:
            points = " ".join(f"{at:.1f},{height:.1f}" for at, height in own)
            line = f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
            parts.append(line)
            labels.append((own[-1][1], way, colour))
    below = top
    for height, way, colour in sorted(labels):
        below = max(height, below + 13)  # so that names do not lie on each other
        parts.append(text(LEFT + across + 8, below + 4, way, fill=colour))
    return parts


def svg(rows, first_new):
    """`rows` have way, hour and the two numbers; `first_new` is the first hour in the new place."""
    size = f'width="{WIDTH}" height="{HEIGHT * len(FIGURES)}"'
    parts = [f'<rect {size} fill="white"/>']
    for number, (key, title) in enumerate(FIGURES):
        parts += figure(rows, key, title, first_new, number * HEIGHT)
    body = "\n".join(parts)
    style = 'font-family="sans-serif" font-size="12"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n{body}\n</svg>\n'
