"""The frame of a self-contained HTML page: one style sheet, and a policy that allows no more."""

import base64
import hashlib
from html import escape
from typing import Final


def html_page(title: str, body: str) -> str:
    """A whole page: no script, no external file, light and dark colours.

    title: any text. body: HTML whose texts are escaped; pictures are data: URIs. What the page
    shows was written by models: even where a text got through unescaped, browsers would run no
    script of it, load nothing and send nothing (its Content-Security-Policy).
    """
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"{_POLICY}; style-src 'sha256-{digest}'"
    return _PAGE.format(title=escape(title), policy=policy, style=STYLE, body=body)


_POLICY: Final = "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'"

_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""

STYLE: Final = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --soft: #5f5f5f;
  --line: #d4d4d4; --panel: #f6f6f4; --mark: #ffe08a; --copied: #b45309; --risky: #c2410c;
  --spend: 0, 114, 178; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e6; --paper: #161618; --soft: #a3a3a3;
  --line: #3a3a3d; --panel: #1f1f22; --mark: #6b5300; --copied: #fbbf24; --risky: #ff9d6b;
  --spend: 86, 180, 233; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; color: var(--ink); background: var(--paper);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0 0 .5rem; }
h2 { font-size: 1.1rem; margin: 0 0 .5rem; }
h2[id] { margin-top: 2.2rem; }
h3 { font-size: .85rem; margin: 0 0 .4rem; color: var(--soft); }
p { margin: 0; }
.text { white-space: pre-wrap; overflow-wrap: anywhere; font-family: Georgia, serif; }
.facts { margin-top: .6rem; font-size: .8rem; color: var(--soft); }
.legend { max-width: 60rem; margin-bottom: .4rem; line-height: 1.8; color: var(--soft); }
.legend mark, .legend u { color: var(--ink); }
nav ul { columns: 16rem; margin: .5rem 0 0; padding-left: 1.2rem; }
article { margin-top: 2rem; padding-top: 1rem; border-top: 1px solid var(--line); }
section { padding: .7rem .9rem; border: 1px solid var(--line); border-radius: .4rem; }
.prompt { margin-bottom: .7rem; }
.columns { display: grid; grid-auto-flow: column; grid-auto-columns: minmax(17rem, 1fr);
  gap: .7rem; overflow-x: auto; padding-bottom: .4rem; }
.reference, .prompt { background: var(--panel); }
.reference { position: sticky; left: 0; }
a { color: inherit; }
mark { background: var(--mark); color: inherit; border-radius: .15rem; }
u { text-decoration: underline 2px var(--risky); text-underline-offset: 3px; }
.s1 { background: rgba(var(--spend), 0.08); }
.s2 { background: rgba(var(--spend), 0.18); }
.s3 { background: rgba(var(--spend), 0.3); }
.s4 { background: rgba(var(--spend), 0.42); }
.s5 { background: rgba(var(--spend), 0.54); }
.s6 { background: rgba(var(--spend), 0.66); }
.spends mark { background: none; font-weight: 600;
  text-decoration: overline 3px var(--copied); }
.spends u mark, .spends mark u { text-decoration: underline 2px var(--risky); }
table { border-collapse: collapse; font-size: .8rem; }
th, td { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
.wide { overflow-x: auto; margin: .6rem 0; }
figure { margin: .6rem 0; }
img { max-width: 100%; height: auto; background: #fff; }
"""
