"""How often the reason that is given for a slower framework is true: budgets without files, of known causes.

    .venv/bin/python -m benchmarks.causes [--budgets 40] [--size 0.08]

For each cause and number of repeats, in percent with exact 95 % intervals:
  claimed  studies in which an arm is called slower, or suggested to be
  named    of these, those that name parts of a step in which the difference lies
  true     of these, those that name just the part in which it does, of the arm in which it does
  unasked  of all studies, those in which a part would be named if one arm, or the other, were called slower
Where both arms have the same budget, nothing is true, and `unasked` is to be at most 5 %. Launches are as in
benchmarks/honest.py, on 4 workers; a cause takes `size` of a step. 1,440 studies take 3 minutes of a core.
"""

import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from benchmarks.honest import share_words
from tests.invented_budgets import CAUSES, named_cause
from unet_scaling.base.command_line import CommandLine

REPEATS = (3, 5, 8)


def main() -> None:
    parser = CommandLine("python -m benchmarks.causes", __doc__)
    parser.add_argument("--budgets", type=int, default=40, help="of each cause and number of repeats")
    parser.add_argument("--size", type=float, default=0.08, help="share of a step that a cause takes")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    print("| cause | repeats | claimed | named | true | unasked |")
    print("|---|--:|--:|--:|--:|--:|", flush=True)
    total = []
    with ProcessPoolExecutor(options.processes) as pool:
        for cause in CAUSES:
            for repeats in REPEATS:
                judged = partial(named_cause, cause, options.size, repeats)
                found = [*pool.map(judged, range(options.budgets), chunksize=10)]
                named = [each for each in found if each.is_claimed and each.parts]
                total += [each.is_true for each in named]
                cells = (
                    share_words([each.is_claimed for each in found]),
                    share_words([bool(each.parts) for each in found if each.is_claimed]),
                    share_words([each.is_true for each in named]),
                    share_words([each.in_either for each in found]),
                )
                print(f"| {cause} | {repeats} | {' | '.join(cells)} |", flush=True)
    print(f"true of all that are named: {share_words(total)} % of {len(total)}")


if __name__ == "__main__":
    main()
