"""Mistakes in the small task of tests/tasks.py, and what has to be said of each: function, line, cure."""

from dataclasses import dataclass, field

from tests.tasks import POINTS

RANK = 'int(os.environ.get("PMI_RANK", 0))'
MEAN = "return functional.cross_entropy(model(batch[0]), batch[1])"
HIDDEN = "        self.hidden = nn.Linear(8, width)\n"
FORWARD = "self.head(functional.relu(self.hidden(places) + self.spare(places)))"
SAMPLE = "        return place, (place.sum() > 0).long()\n"
COUNTS = "    return torch.stack([right.sum(), torch.tensor(len(right))])\n"
SETS = "    return Points(0, 48), Points(1000, 13)\n"
SCORE = '    return {"accuracy": counts[0] / counts[1]}\n'
BUILT = '    return Network(options["width"])\n'
DEFINITIONS = {
    "build_model": "def build_model(",
    "datasets": "def datasets(",
    "loss": "def loss(",
    "count": "def count(",
    "score": "def score(",
    "transform": "def transform(",
    "parameters": "def parameters(",
    "optimizer": "def optimizer(",
}


@dataclass(frozen=True)
class Mistake:
    """Changes of the small task; the function that is to be named, a word of the cure, and the exit code.

    `line` is a text of the line that is named, where that is not the one which defines the function.
    """

    function: str
    word: str
    changes: dict[str, str]
    code: int = 2
    line: str = ""
    training: dict[str, int] = field(default_factory=dict)

    @property
    def source(self) -> str:
        return changed(self.changes)

    @property
    def place(self) -> str:
        """The file and line that errors have to name."""
        text = self.line or DEFINITIONS[self.function]
        *_, number = (number for number, line in enumerate(self.source.splitlines(), 1) if text in line)
        return f"my_task.py:{number}: {self.function}: "


def changed(changes: dict[str, str]) -> str:
    """The small task with these changes."""
    source = POINTS
    for right, wrong in changes.items():
        assert right in source, right
        source = source.replace(right, wrong)
    return source


def forward(new: str, **layers: str) -> dict[str, str]:
    """Another forward pass, with these further attributes of the network."""
    return {
        FORWARD: new,
        HIDDEN: HIDDEN + "".join(f"        self.{key} = {value}\n" for key, value in layers.items()),
    }


def added(text: str, after: str = SCORE) -> dict[str, str]:
    return {after: after + text}


def built(*lines: str) -> dict[str, str]:
    return {
        BUILT: "".join(
            f"    {line}\n" for line in ('model = Network(options["width"])', *lines, "return model")
        )
    }


def checkpoint(reentrant: bool) -> dict[str, str]:
    """The same forward pass, in a checkpoint."""
    call = f"checkpoint(self.inner, places.requires_grad_(), use_reentrant={reentrant})"
    inner = f"\n\n    def inner(self, places):\n        return {FORWARD}\n"
    return {
        f"{FORWARD}\n": call + inner,
        "import torch\n": "import torch\nfrom torch.utils.checkpoint import checkpoint\n",
    }


WEIGHTED = "batch[1], torch.tensor([1.0, 9.0]))"
DICE = (
    "chance = model(batch[0]).softmax(dim=1)[:, 1]\n"
    "    return 1 - 2 * (chance * batch[1]).sum() / (chance.sum() + "
    "batch[1].sum())"
)
TRANSFORM = "\n\ndef transform(batch, seeds):\n    {}\n    return batch\n"
# All that one worker can see, by what is wrong.
MISTAKES = {
    # Losses.
    "sum": Mistake("loss", "divide by the number", {MEAN: MEAN[:-1] + ', reduction="sum")'}),
    "class weights": Mistake(
        "loss", "task.loss_is_mean = false", {"batch[1])\n\n\ndef count": WEIGHTED + "\n\n\ndef count"}
    ),
    "dice of a batch": Mistake("loss", "task.loss_is_mean = false", {MEAN: DICE}),
    "not finite": Mistake("loss", "nan", {MEAN: MEAN + " * float('nan')"}),
    "no graph": Mistake("loss", "no parameter", {MEAN: MEAN + ".detach()"}),
    "unused": Mistake("loss", "spare.weight, spare.bias", {" + self.spare(places)": ""}),
    "rarely random": Mistake(
        "loss", "Python's random", {MEAN: f"import random\n    {MEAN} * (1 + (random.random() < 0.01))"}
    ),
    # Exceptions: the line is the one that failed.
    "bad sample": Mistake(
        "datasets", "IndexError", {SAMPLE: "        return place, [][index]\n"}, line="[][index]"
    ),
    "layer of another size": Mistake(
        "loss",
        "RuntimeError in head, Linear(in_features=7, out_features=2, bias=True): mat1 and mat2",
        {"self.head = nn.Linear(width, 2)": "self.head = nn.Linear(7, 2)"},
        line=f"return {FORWARD}",
    ),
    "relative path": Mistake(
        "datasets",
        "use Path(__file__).parent / 'labels.csv'",
        {SETS: f"    open('labels.csv')\n{SETS}"},
        line="open('labels.csv')",
    ),
    # Random numbers and the order of reads.
    "random sample": Mistake(
        "datasets", "torch", {", generator=torch.Generator().manual_seed(self.first + index)": ""}, 65
    ),
    "random transform": Mistake("transform", "torch", added(TRANSFORM.format("torch.rand(1)"))),
    "data changed": Mistake(
        "datasets",
        "loss or count",
        {
            "        place = torch": "        return ALL[self.first % 952 + index]\n\n"
            "    def one(self, index):\n        place = torch",
            MEAN: "ALL[0][0].add_(model.training)\n    " + MEAN,
            "class Network": "ALL = [Points(0, 48).one(index) for index in range(61)]\n\n\nclass Network",
        },
        65,
    ),
    # Test samples that are training samples.
    "one set": Mistake(
        "datasets", "gives one data set as both", {SETS: "    return [Points(0, 48)] * 2\n"}, 65
    ),
    "equal sets": Mistake("datasets", "13 of 13 test samples", {"Points(1000, 13)": "Points(20, 13)"}, 65),
    "half": Mistake(
        "datasets",
        "test sample 5 is training sample 0",
        {SETS: "    return Points(5, 900), Points(0, 10)\n"},
        65,
    ),
    # Counts and scores.
    "mean count": Mistake(
        "count",
        "does not add up",
        {COUNTS: "    return torch.tensor([int(100 * right.float().mean()), 100])\n"},
    ),
    "not finite evaluation": Mistake(
        "count", "NaN", forward(FORWARD + " * (1.0 if len(places) > 1 else float('nan'))"), 70
    ),
    "no share": Mistake("score", "0 to 1", {"counts[0] / counts[1]": "1 + counts[1] - counts[0]"}),
    "name": Mistake("score", "lower-case", {'"accuracy"': '"Accuracy"'}),
    "error": Mistake("score", "HIGHER_IS_BETTER = False", {'"accuracy"': '"mean_error"'}),
    # Weights.
    "complex": Mistake(
        "build_model",
        "turn is complex64",
        forward(f"({FORWARD} * self.turn).real", turn="nn.Parameter(torch.ones(2, dtype=torch.complex64))"),
    ),
    "meta": Mistake("build_model", "spare.weight is on the device meta", built('model.spare.to("meta")')),
    "lazy": Mistake(
        "build_model",
        "spare.weight has no shape",
        {"self.spare = nn.Linear(8, width)": "self.spare = nn.LazyLinear(width)"},
    ),
    "not contiguous": Mistake(
        "build_model",
        "spare.weight is not contiguous",
        built("model.spare.weight = nn.Parameter(torch.randn(8, 4).t())"),
    ),
    "frozen": Mistake("build_model", "requires_grad", built("model.requires_grad_(False)")),
    "no model": Mistake("build_model", "nn.Module", {BUILT: BUILT.replace("Network(", "vars(Network)or(")}),
    "state": Mistake(
        "build_model",
        "dict",
        added("\n    def get_extra_state(self):\n        return {}\n", f"        return {FORWARD}\n"),
    ),
    "sparse": Mistake(
        "build_model",
        "sparse=False",
        forward(
            FORWARD.replace("(places)))", "(places) + self.table((places[:, 0] > 0).long())))"),
            table="nn.Embedding(2, width, sparse=True)",
        ),
    ),
    "renormalised": Mistake(
        "loss",
        "table.weight",
        forward(
            FORWARD.replace("(places)))", "(places) + self.table((places[:, 0] > 0).long())))"),
            table="nn.Embedding(2, width, max_norm=0.1)",
        ),
    ),
    "plain list": Mistake(
        "build_model", "more[0].weight", forward(f"self.more[0]({FORWARD})", more="[nn.Linear(2, 2)]")
    ),
    "left out": Mistake(
        "parameters",
        "head.weight, head.bias",
        added(
            "\n\ndef parameters(model):\n    return [*model.hidden.parameters(), *model.spare.parameters()]\n"
        ),
    ),
    "hooks of an optimizer": Mistake(
        "optimizer",
        "leave them out",
        added(
            "\n\ndef optimizer(model):\n    made = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)\n"
            "    made.register_step_pre_hook(print)\n    return made\n"
        ),
    ),
    "reentrant": Mistake("loss", "use_reentrant=False", checkpoint(True)),
}
# They show only where two workers are compared.
MISTAKES_OF_WORKERS = {
    "rank": Mistake(
        "datasets", "workers 0 and 1", {"self.first + index)": f"self.first + index + 7 * {RANK})"}, 65
    ),
    "shuffle": Mistake(
        "datasets",
        "or seed the shuffle",
        {
            SETS: "    firsts = [0, 100]\n    firsts = firsts[:: -1 if " + RANK + " else 1]\n"
            "    return Points(firsts[0], 48), Points(1000, 13)\n"
        },
        65,
    ),
    "branch": Mistake(
        "loss", "a branch depends", {" + self.spare(places)": f" + (0 if {RANK} else self.spare(places))"}
    ),
    "scale": Mistake(
        "loss", "a branch depends on", {"return functional.cross": f"return (1 + {RANK}) * functional.cross"}
    ),
    "order of reads": Mistake(
        "datasets",
        "what was read before",
        {
            "place = torch": "place = KEPT.setdefault((self.first, index), len(KEPT)) + torch",
            "class Network": "KEPT = {}\n\n\nclass Network",
        },
        65,
    ),
}
# What looks like a mistake and is none: trained alike by all frameworks.
RIGHT = {
    "shared weights": {
        HIDDEN: HIDDEN,
        "self.spare = nn.Linear(8, width)": "self.spare = nn.Linear(8, width)\n"
        "        self.spare.weight = self.hidden.weight",
    },
    "double": built("model.double()")
    | {"(model(batch[0])": "(model(batch[0].double())", "= model(batch[0])": "= model(batch[0].double())"},
    "dropout": forward(
        f"functional.dropout(self.dropped({FORWARD}), 0.3, self.training)", dropped="nn.Dropout(0.5)"
    ),
    "batch norm": forward(f"self.norm({FORWARD})", norm="nn.BatchNorm1d(2)"),
    "checkpoint": checkpoint(False),
    "ruled out": forward(f"torch.cat([{FORWARD}, torch.full((len(places), 1), -torch.inf)], dim=1)"),
    "one copy": {"Points(1000, 13)": "Points(47, 13)"},
    "few values": {"manual_seed(self.first + index)": "manual_seed((self.first + index) % 20)"},
    "lower is better": {SCORE: SCORE.replace("accuracy", "error_rate") + "\n\nHIGHER_IS_BETTER = False\n"},
}
