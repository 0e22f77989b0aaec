"""Of the race's methods, the eight without a parameter server, on a smaller network to train.

The two opponents are those of `configs/slow_network.py`, on the same seeds, so that their trials
are found again, and so are those of the arms that older claims had. The rule is of the median arm:
where its ratio is below 1, at least half of the eight are faster.
"""

from typing import Any

from optdyn.configs import contest, slow_network
from optdyn.configs.slow_network import Smaller
from optdyn.evidence.claim import Claim, Verdict, below
from optdyn.evidence.contest import Contest, Entry, best_of, words
from optdyn.evidence.intervals import shown, typical_at_best

ARMS = (
    "gossip",
    "PowerSGD",
    "AD-PSGD",
    "local SGD",
    "SlowMo",
    "DASO",
    *slow_network.ARMS,
)
TIMES = {contest.JUDGED: "twice", slow_network.SLOW: "twenty times"}  # all-reduce over computing


def claim(number: int, old: Claim, network: str, source: str) -> Claim:
    """What is asked of the eight on a network, and the rule; `old` asks it there of two of them."""
    problem = old.sentence.partition(" ")[0]
    return old._replace(
        number=number,
        sentence=f"{problem} Where the all-reduce takes {TIMES[network]} the computing, the median "
        f"of the {len(ARMS)} methods without a parameter server takes fewer seconds to a loss than "
        "the best of synchronous training with its best batch and outer momentum",
        source=f"here; {source}",
        measured=old.measured.replace(slow_network.SLOW, network),
        opponent=old.opponent.replace("All four choose", "All choose").replace(
            "SNOO and DiLoCo their period (2, 8, 32, 128)",
            "those with a period that (2, 8, 32, 128; DASO's B 1, 4, 16, 64)",
        ),
        rule="Of each arm, its median seconds over those of the best opponent on nodes like its "
        "own, on the 20 seeds that report. Of the median of these ratios, with a 95 % interval "
        "from seeds drawn together for all arms, those that choose too: confirmed if the interval "
        "is below 1, refuted if it is above, open otherwise. It is decided with --scale=full. "
        f"Words of the arms are corrected by Holm over {len(ARMS)}",
    )


def of_arms(of: Smaller, network: str) -> Contest:
    made = slow_network.of_smaller(of, network)
    return made._replace(entries={name: entry(of, name) for name in ARMS}, family=len(ARMS))


def entry(of: Smaller, name: str) -> Entry:
    """That of the two older arms, which start where they did; others from the usual batch."""
    found = slow_network.entry(of, name)
    if name in slow_network.ARMS:
        return found
    return found._replace(usual=(*slow_network.entry(of, contest.PLAIN).usual, *found.usual[1:]))


def verdict(result: dict[str, Any]) -> Verdict:
    network, last = result["judged"], str(result["losses"][-1])
    said, sides, told = words(result)[network], [], list[str]()
    for row in result["rows"]:
        own = row["networks"][network]
        best = best_of(result["opponents"][network][own["shape"]])
        sides.append((own["seconds"][last], best["seconds"][last], _times(own), _times(best)))
        chosen = ", ".join(f"{value:g}" for value in own["chosen"].values())
        over, (word, p) = shown(own["over at best"]), said[row["arm"]]
        told.append(f"{row['arm']} ({chosen}) {over}, {word} (p = {p:.2g})")
    found, n = typical_at_best(sides), len(sides[0][0])
    by = f"{network}: the median arm takes {shown(found)} of the best opponent's seconds (n = {n})"
    return Verdict(below(found, 1.0), f"{by}; {'; '.join(told)}")


def _times(told: dict[str, Any]) -> list[list[float]]:
    """(cells, seeds that choose) seconds, which follow what the network chose."""
    return [each[len(told["chosen"]) :] for each in told["tried"]]
