"""
The contract between Tessera's services and everybody else: pydantic models only, installable alone.

- `job`: what is submitted; `commands`: what may be asked; `config`: tenants, queues, limits, policy
- `facts`: what a service saw; `orders`: who is next; `ledger`: what was taken in and decided
- `events`: what subscribers get (CloudEvents 1.0); `views`: what Redis holds
- `subjects`, `keys`, `labels`: where all of it lives and how it is called; `registry`: every type with its version
- `generate`: JSON Schemas and the AsyncAPI document (extra `generate`)
"""
