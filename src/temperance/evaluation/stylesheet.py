"""The look of a report page: system fonts, light and dark, on screen and on paper."""

__all__ = ["STYLESHEET"]

STYLESHEET = """\
:root {
  --ink: #1d2126; --muted: #5c6570; --paper: #ffffff; --wash: #f5f7f9; --line: #d9dee3;
  --accent: #0b62a3; --good: #0a7a5c; --warning: #b04a00; --chosen: #eaf3fa;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e4e8ec; --muted: #a3adb8; --paper: #14181c; --wash: #1d2329; --line: #353d46;
    --accent: #7cbdf0; --good: #5fd0ac; --warning: #f2a566; --chosen: #1b2c3a;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  -webkit-text-size-adjust: 100%;
}
main { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1.5rem 4rem; }
header { border-bottom: 1px solid var(--line); margin-bottom: 1.5rem; padding-bottom: 0.75rem; }
h1 { font-size: 1.9rem; line-height: 1.25; margin: 0; letter-spacing: -0.01em; }
h2 { font-size: 1.3rem; line-height: 1.3; margin: 2.75rem 0 0.75rem; }
h3 { font-size: 1.05rem; line-height: 1.35; margin: 1.75rem 0 0.5rem; }
p, ol { max-width: 46rem; margin: 0.6rem 0; }
.lead { color: var(--muted); font-size: 1.05rem; margin: 0.4rem 0 0; }
a { color: var(--accent); }
nav ul { display: flex; flex-wrap: wrap; gap: 0.2rem 1.4rem; }
nav ul { list-style: none; margin: 0; padding: 0; }
nav { font-size: 0.95rem; margin-bottom: 1rem; }
code {
  font: 0.9em ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace;
  background: var(--wash); border: 1px solid var(--line); border-radius: 4px;
  padding: 0.05em 0.35em; overflow-wrap: anywhere;
}
ol { padding-left: 1.6rem; }
li { margin: 0.3rem 0; }
.scroll { overflow-x: auto; margin: 1.1rem 0 0.4rem; }
.scroll:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
table { border-collapse: collapse; min-width: 55%; font-size: 0.92rem; line-height: 1.4; }
caption { text-align: left; font-weight: 600; padding: 0 0 0.5rem; }
th, td { text-align: left; padding: 0.45rem 0.75rem; vertical-align: baseline; }
th:first-child { padding-left: 0.5rem; }
thead th {
  border-bottom: 2px solid var(--line); color: var(--muted); font-weight: 600;
  font-size: 0.85rem; vertical-align: bottom;
}
tbody tr { border-bottom: 1px solid var(--line); }
tbody th { font-weight: 500; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.interval { display: block; color: var(--muted); font-size: 0.8em; }
.none { color: var(--muted); }
.chosen { background: var(--chosen); }
.chosen th, .chosen td { font-weight: 650; }
.chosen .interval { font-weight: 400; }
.tablenote, figcaption { color: var(--muted); font-size: 0.85rem; }
figure { margin: 1.5rem 0; }
figure img {
  display: block; max-width: 100%; height: auto; margin: 0 auto; background: #ffffff;
  border: 1px solid var(--line); border-radius: 8px; padding: 0.75rem;
}
figcaption { margin-top: 0.5rem; max-width: 46rem; }
.callout {
  border: 1px solid var(--line); border-left: 4px solid var(--accent); border-radius: 6px;
  background: var(--wash); padding: 0.7rem 1.1rem; margin: 1.2rem 0; max-width: 50rem;
}
.callout p { margin: 0.15rem 0; }
.callout strong { color: var(--accent); }
.callout.good { border-left-color: var(--good); }
.callout.good strong { color: var(--good); }
.callout.warning { border-left-color: var(--warning); }
.callout.warning strong { color: var(--warning); }
footer { border-top: 1px solid var(--line); margin-top: 3rem; }
footer p { color: var(--muted); font-size: 0.85rem; }
@media (max-width: 40rem) { main { padding: 1.25rem 1rem 2.5rem; } h1 { font-size: 1.5rem; } }
@media print {
  :root {
    --ink: #000000; --muted: #444444; --paper: #ffffff; --wash: #ffffff; --line: #bbbbbb;
    --accent: #0b62a3; --good: #0a7a5c; --warning: #b04a00; --chosen: #f0f0f0;
  }
  body { font-size: 10.5pt; }
  main { max-width: none; padding: 0; }
  nav { display: none; }
  h2, h3, caption { break-after: avoid; }
  figure, .callout, tr { break-inside: avoid; }
  .scroll { overflow: visible; }
}
"""
