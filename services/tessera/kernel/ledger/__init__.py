"""
The ledger: how records are appended, read, trusted and cut short.

**Problem.** Many processes watch one cluster and some of them think that they lead. Two decisions about one GPU must
never both stand, and no process may build on a record that another one does not see. Clocks, leases and caches cannot
promise that. One stream with one writer at a time can: the ledger is the truth, and all else is derived from it.

    facts, orders                compare-and-swap at n             follow after n
    ------------> committer  ----------------------->  LEDGER  --------------------> every service: fold
                     ^                                    |                              |
                     |  tail, after a lost swap           | n = sequence of the stream   | checks, then state(n)
                     +------------------------------------+                              v
                                              openings, snapshots <-------------- SNAP (projection, operator)

**One message** carries its number `n`, the hash of the message before it (`prev`), its epoch, a transaction id, the
facts and orders that were taken in, and the records that follow from them. Only records fold. `decide` works on an
overlay of state(n-1), so that an append that fails has changed nothing.

**The committer.** A scheduler that holds the lease reads the tail, folds up to it and opens an epoch with its first
append. From then on one append is in flight at a time.

| state | condition | operation | next |
|---|---|---|---|
| reading | the tail is folded | append the record of epoch + 1 at `n` | leading, or reading after a conflict |
| leading | inputs came or a deadline is due | decide on an overlay | appending, or leading where nothing changes |
| appending | stored as `n` + 1 | fold the message | leading |
| appending | `Conflict` or `UnknownOutcome` | read the tail through the leader of the stream | settling |
| appending | `Full` | keep the facts in their stream, say `LedgerFull`, try again | leading |
| appending | `Transient`: certainly not stored | wait, decide anew | leading |
| settling | the tail has the transaction id | nothing: the fold has it already | leading |
| settling | the tail has no younger epoch | decide anew from what stands there | leading |
| settling | the tail has a younger epoch | stop being the committer | reading, with the next lease |

An append of unknown outcome is never sent again: the same bytes at another place would be another decision.

**Compare-and-swap.** `StreamLedger.append` names the last sequence of the ledger's one subject. NATS stores the
message at `expected + 1` or refuses it. A sequence says nothing of the message that has it: a stream that was restored
from an older copy may stand at the same number. So the tail has to be read and compared (`tail(to_append=True)`) over
each new connection before anything is appended there; before that, `append` raises `Conflict` and sends nothing.

**What survives what.**

| | process ends | machine is lost | Redis is lost | NATS is lost |
|---|---|---|---|---|
| messages of LEDGER | yes | yes, with the replicas of the stream | yes | from a backup only |
| state of the fold | no: snapshot and fold | no: as before | yes | from the restored ledger |
| snapshots and openings | yes | yes | yes | no: the ledger is folded whole, if it is whole |
| the epoch | yes: the newest in the ledger | yes | yes | as restored |
| an overlay, an append in flight | no: the tail says whether it was stored | no | untouched | no |
| facts not taken in | yes, in FACTS from `facts_upto` on | yes | yes | no: their senders look again |

**Trust.**

- A *message* is trusted if its number is its sequence, this build knows all of its fields and kinds, and its `prev` is
  the hash of the message before. Anything else is an `InvariantViolation`: the service stays up, is not ready and
  decides nothing.
- A *snapshot* is trusted if it hashes to the checkpoint record behind it. Another one is passed over for the one
  before it. The cost of a start is therefore (ledger since the newest trusted snapshot) / (speed of the fold).
- A *witness* (events, orders, Redis) that names a record above the end proves that the ledger lost its end.
  One look is not enough, since a deposed leader of the stream answers with what it had: `DOUBTS_MAX` looks,
  `DOUBT_SECONDS` apart, must agree. A loss is therefore seen after 10 s and three times `DOUBT_SECONDS` (11.5 s) at
  most while the servers answer. Orders count only at the start, since one from the future must stop nobody later.
- A *lease* is trusted by nobody here. A leader that slept past its lease fails at its next swap.

**Failures.**

- Two leaders: both append at `n`. One swap wins, the other one reads a younger epoch and is deposed (`Deposed`).
- A full stream: `LedgerRoom` closes the door for new work at the last tenth (16 MiB at least, half at most), so that
  releases and ends of known jobs still fit. Nothing is trimmed.
- A cut or rewritten ledger: `LedgerEnd` compares the end and the chain's hash with Redis and with what the process
  itself saw, and halts the shard. An operator restores the newest copy.
- A roll-over (`generations`): the opening state and the messages of live jobs are stored before any message leaves
  the stream, and each step may be repeated. A reader that was behind gets `RolledOver` and restores from the opening.

Modules: `stream` (the port over a bus), `shard` (the fold as one process has it), `loop` (what a service runs),
`snapshots`, `generations`, `end`, `room`, `specs`, `timestamps`. ADRs 0001, 0002, 0005, 0009, 0032 and 0040 say why.
"""
