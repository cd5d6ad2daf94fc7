"""Accounting: a private MariaDB and slurmdbd on a host of their own, so that sacct is real."""

from slurm.virtual.configuration import slurmdbd_conf
from slurm.virtual.namespaces import enter
from slurm.virtual.plan import Plan
from slurm.virtual.processes import run
from slurm.virtual.services import ask, start_inside, wait_for

CREATE_USER = """
CREATE USER 'slurm'@'127.0.0.1';
GRANT ALL ON slurm_accounting.* TO 'slurm'@'127.0.0.1';
"""


def write_configuration(plan: Plan) -> None:
    """Write slurmdbd.conf; slurmdbd refuses to start if others may read it."""
    file = plan.state / "slurmdbd.conf"
    file.touch(mode=0o600)
    file.write_text(slurmdbd_conf(plan))


def start_all(plan: Plan) -> None:
    """Create an empty database, start its server and slurmdbd."""
    create_database(plan)
    start_database(plan)
    create_accounts(plan)
    start_slurmdbd(plan)


def create_database(plan: Plan) -> None:
    """Create an empty database in the state folder."""
    folder = plan.state / "mariadb"
    run(["mariadb-install-db", "--no-defaults", f"--datadir={folder}", "--user=root", "--skip-test-db"])


def start_database(plan: Plan) -> None:
    """Start MariaDB; it listens on the loop-back of its own host, which only root can enter."""
    folder = plan.state / "mariadb"
    files = [f"--datadir={folder}", f"--socket={folder}/socket", f"--pid-file={folder}/pid"]
    limits = ["--bind-address=127.0.0.1", "--innodb-buffer-pool-size=32M", "--innodb-log-file-size=16M"]
    start_inside(plan, "database", ["mariadbd", "--no-defaults", "--user=root", *files, *limits], "mariadb")
    wait_for(plan, "mariadb", (folder / "socket").is_socket)


def create_accounts(plan: Plan) -> None:
    """Create the account of slurmdbd in the database."""
    socket = f"--socket={plan.state}/mariadb/socket"
    run([*enter(plan, "database"), "mariadb", "--no-defaults", socket], text=CREATE_USER)


def start_slurmdbd(plan: Plan) -> None:
    """Start slurmdbd and register the cluster with it."""
    start_inside(plan, "database", ["env", f"SLURM_CONF={plan.slurm_conf}", "slurmdbd", "-D"], "slurmdbd")
    wait_for(plan, "slurmdbd", lambda: "Cluster" in ask(plan, "sacctmgr", "show", "cluster"))
    ask(plan, "sacctmgr", "--immediate", "add", "cluster", "virtual")
