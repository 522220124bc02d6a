"""Style and script of the HTML report; light or dark as the reader's system says."""

STYLE = """
:root { color-scheme: light dark; --line: rgba(128,128,128,.3); --soft: rgba(128,128,128,.1); }
body { margin: 0; font: 15px/1.5 system-ui, -apple-system, 'Segoe UI', sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 24px; }
h1 { margin: 0; font-size: 26px; } h2 { margin: 36px 0 4px; font-size: 19px; }
.sub { margin: 0 0 8px; opacity: .7; }
.answer { background: var(--soft); border-left: 4px solid #0072B2; padding: 2px 20px 10px; margin-top: 20px; }
.answer h2 { margin-top: 12px; } h3 { margin: 12px 0 0; font-size: 15px; }
.answer ul { margin: 2px 0; } .answer li { margin: 4px 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; } td, th { padding: 4px 10px; text-align: left;
  border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; white-space: nowrap; } .facts td:first-child { opacity: .7; white-space: nowrap; }
tr.error td:last-child { color: #D55E00; } tr.unsupported td:last-child, tr.infeasible td:last-child { opacity: .75; }
pre { background: var(--soft); padding: 12px; overflow-x: auto; font-size: 13px; }
"""

SCRIPT = """
const dark = window.matchMedia('(prefers-color-scheme: dark)');
const paint = () => document.querySelectorAll('.js-plotly-plot').forEach(
  figure => Plotly.relayout(figure, {'font.color': dark.matches ? '#d0d0d0' : '#404040'}));
window.addEventListener('load', paint);
dark.addEventListener('change', paint);
"""
