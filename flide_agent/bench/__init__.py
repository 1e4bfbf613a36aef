"""`flide-agent bench`: how fast this machine answers, beside what its matrix products alone would take, and whether load changes a bit.

Reading order: `shapes` (sizes of requests in tokens), `texts` (texts of exactly so many tokens), `datasets` (the real sets),
`sources` (either as request bodies), `beside` (products and attention alone), `inside` (the engine in process), `ablation` (its
requests without one of its ideas), `wire` (closed-loop clients), `target` and `served` (the server asked), `levels`, `agents`,
`states` (what is measured through HTTP), `machine` and `report` (what is written down), `leash`, `command` (the command line).
"""
