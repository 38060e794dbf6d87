"""sparkguard-doctor where jobs have left processes behind: engines of vLLM, workers of Ray, kernels of Jupyter."""

import os

import pytest
from doctor_tree import GIB, MIB, doctor  # noqa: F401

ORPHAN = 1
VLLM = ("VLLM::EngineCor", ["VLLM::EngineCore"])
KERNEL = ("python3", ["python3", "-m", "ipykernel_launcher", "-f", "kernel.json"])
SERVICE = "0::/system.slice/trainer.service\n"
USERS_SERVICE = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/trainer.service\n"


def start(tree, pid, names, parent, resident=MIB, cgroup="0::/user.slice/user-1000.slice/session-1.scope\n", uid=None):
    uid = os.geteuid() if uid is None else uid
    tree.process(pid, names[0], parent=parent, resident=resident, cmdline=names[1], uid=uid)
    tree.write(f"proc/{pid}/cgroup", cgroup)


def left(doctor):  # noqa: F811
    (finding,) = [f for f in doctor.json()["findings"] if f["id"] == "left-processes"] or [None]
    return finding


def test_what_jobs_left_is_named_with_the_pids_that_end_it(doctor):  # noqa: F811
    start(doctor.tree, 70, VLLM, ORPHAN, 30 * GIB)
    start(doctor.tree, 71, ("ray::IDLE", ["ray::IDLE"]), 60, 1 * GIB)
    start(doctor.tree, 72, ("ray::train", ["ray::train()"]), ORPHAN)
    start(doctor.tree, 73, KERNEL, ORPHAN)
    start(doctor.tree, 74, ("sglang::sched", ["sglang::scheduler"]), ORPHAN, 2 * GIB)
    finding = left(doctor)
    assert finding["state"] == "warning" and finding["mend"] == "kill 70 71 72 73 74"
    assert finding["figures"] == {"left_count": 5, "left_bytes": 33 * GIB + 2 * MIB}
    assert "5 processes of ended jobs run on with 33.0 GiB: 70 VLLM::EngineCore, an engine of vLLM, 30.0 GiB; " in finding["sentence"]
    assert "71 ray::IDLE, an idle worker of Ray, 1.0 GiB; " in finding["sentence"] and finding["sentence"].endswith("; ...")


@pytest.mark.parametrize(
    "names, parent, resident, cgroup",
    [
        (VLLM, 60, 30 * GIB, None),  # its server runs
        (KERNEL, 60, 2 * GIB, None),
        (("ray::train", ["ray::train()"]), 60, 2 * GIB, None),
        (("ray::IDLE", ["ray::IDLE"]), 60, MIB, None),
        (("python3", ["python3", "train.py"]), ORPHAN, 4 * GIB, None),  # as nohup leaves it
        (KERNEL, ORPHAN, 4 * GIB, SERVICE),
        (KERNEL, ORPHAN, 4 * GIB, USERS_SERVICE),
    ],
)
def test_what_works_is_not_left(doctor, names, parent, resident, cgroup):  # noqa: F811
    start(doctor.tree, 60, ("bash", ["bash"]), ORPHAN)
    start(doctor.tree, 70, names, parent, resident, **({"cgroup": cgroup} if cgroup else {}))
    assert left(doctor) is None


def test_a_child_of_the_users_systemd_is_left(doctor):  # noqa: F811
    start(doctor.tree, 50, ("systemd", ["/usr/lib/systemd/systemd", "--user"]), ORPHAN)
    start(doctor.tree, 70, VLLM, 50)
    assert left(doctor)["figures"]["left_count"] == 1


def test_a_zombie_is_not_left(doctor):  # noqa: F811
    doctor.tree.process(70, VLLM[0], parent=ORPHAN, state="Z", cmdline=VLLM[1])
    assert left(doctor) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's processes are ended without sudo by root alone")
def test_root_needs_no_sudo(doctor):  # noqa: F811
    start(doctor.tree, 70, VLLM, ORPHAN, uid=12345)
    assert left(doctor)["mend"] == "kill 70"
