"""flide_agent: typed decisions about an agent's history at every step.

Reading order: `client` (what users import; needs neither torch nor litestar), `prompts` (text to tokens), `sessions`
(histories, heads, the fork point), `store` (checkpoints on disk and in memory), `dispatch` and `decide` (the one path from
request to answers), `api` (HTTP), `replay` (trajectories), `cli`.
"""

__version__ = "0.1.0"
