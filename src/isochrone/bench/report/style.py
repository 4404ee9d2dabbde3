"""The style of the report, light and dark. Colours of runs differ for every kind of colour vision."""

from __future__ import annotations

#: Okabe and Ito's palette, darkened or lightened until it stands out from its background.
STYLE = """
:root { color-scheme: light dark; --back: #fff; --card: #f7f8fa; --text: #1c1f24; --soft: #5a6270; --rule: #d9dde3;
  --run0: #0064b0; --run1: #b84a00; --run2: #00765a; --run3: #9c3f78; --run4: #7a6100; --run5: #30343b;
  --heat: #0064b0; --good: #00765a; --bad: #b3261e; --late: #b87500; --rejected: #7b5aa6; --unsent: #6b7280; }
@media (prefers-color-scheme: dark) {
  :root { --back: #14171c; --card: #1c2027; --text: #e6e9ee; --soft: #a3acb9; --rule: #353c47;
  --run0: #62b5ff; --run1: #ff9d5c; --run2: #4fd1a8; --run3: #e59ac6; --run4: #e6cf5a; --run5: #c9ced6;
  --heat: #7cc4ff; --good: #4fd1a8; --bad: #ff8a80; --late: #ffc24d; --rejected: #c4a7f0; --unsent: #9aa3b0; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 1240px; padding: 1rem; color: var(--text);
  background: var(--back); }
h1 { font-size: 1.5rem; margin: .5rem 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .4rem; } p { max-width: 80ch; margin: .5rem 0; } .note { color: var(--soft); }
.warning { border-left: 4px solid var(--late); padding: .4rem .8rem; background: var(--card); }
.verdict { font-weight: 600; }
.table { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: .3rem .7rem; border-bottom: 1px solid var(--rule); text-align: right; white-space: nowrap;
  vertical-align: top; }
th { color: var(--soft); font-weight: 500; } td:first-child, th:first-child { text-align: left; }
td small { display: block; color: var(--soft); } .kind { padding-left: 1rem; }
.messages td:nth-child(2) { text-align: left; white-space: normal; overflow-wrap: anywhere; min-width: 12rem; }
.worse { color: var(--bad); font-weight: 600; } .better { color: var(--good); font-weight: 600; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem .8rem; margin: .5rem 0; }
dd { margin: 0; overflow-wrap: anywhere; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1rem; }
figure { margin: 0; padding: .8rem; background: var(--card); border-radius: 8px; min-width: 0; }
figcaption { font-weight: 600; margin-bottom: .3rem; } figure > svg { width: 100%; height: auto; display: block; }
.legend { display: flex; flex-wrap: wrap; gap: .1rem 1rem; color: var(--soft); font-size: .87rem; }
.key { width: 24px; height: 10px; margin-right: .4rem; }
svg text { font-size: 13px; fill: var(--soft); } .grid { stroke: var(--rule); fill: none; }
.line { fill: none; stroke: var(--ink); stroke-width: 2; stroke-linejoin: round; } .thin { stroke-width: 1.2; }
.dashed { stroke-dasharray: 5 4; } .band { fill: var(--ink); fill-opacity: .16; } .dot { fill: var(--ink); }
.fill { fill: var(--ink); } .heat { fill: var(--heat); } .name { color: var(--ink); }
.run0 { --ink: var(--run0); } .run1 { --ink: var(--run1); } .run2 { --ink: var(--run2); } .run3 { --ink: var(--run3); }
.run4 { --ink: var(--run4); } .run5 { --ink: var(--run5); }
.intended { --ink: var(--soft); } .answered { --ink: var(--run0); } .good { --ink: var(--good); }
.late { --ink: var(--late); } .rejected { --ink: var(--rejected); } .failed { --ink: var(--bad); }
.unsent { --ink: var(--unsent); }
.heat1 { opacity: .14; } .heat2 { opacity: .26; } .heat3 { opacity: .38; } .heat4 { opacity: .5; }
.heat5 { opacity: .62; } .heat6 { opacity: .74; } .heat7 { opacity: .87; } .heat8 { opacity: 1; }
@media (max-width: 600px) { svg text { font-size: 17px; } td, th { padding: .3rem .45rem; } }
@media print { figure { break-inside: avoid; } }
"""
