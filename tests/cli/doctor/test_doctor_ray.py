"""sparkguard-doctor where Ray runs: whether Ray's memory monitor would kill a worker before the guard's floor is reached."""

import pytest
from doctor_tree import GIB, doctor  # noqa: F401

TOTAL = 120 * GIB  # of the tree; the floor is 2 % of it


def run_raylet(tree, *variables):
    tree.write("sys/fs/cgroup/job/memory.max", "max\n")  # the floor is that of the machine
    tree.process(300, "raylet", cmdline=["/opt/ray/raylet", "--num_initial=1"])
    tree.write("proc/300/environ", "".join(f"{word}\0" for word in ("HOME=/root", *variables, "Z=\xff")).encode("latin-1"))


@pytest.mark.parametrize(
    "variables, state, left_percent",
    [
        ((), "warning", 5),
        (("RAY_memory_usage_threshold=0.9",), "warning", 10),
        (("RAY_memory_usage_threshold=0.98",), "fine", 2),
        (("RAY_memory_usage_threshold=1",), "fine", 0),
        (("RAY_memory_usage_threshold=much",), "warning", 5),
        (("RAY_memory_usage_threshold=",), "warning", 5),
        (("RAY_memory_monitor_refresh_ms=0",), "fine", 0),
        (("RAY_memory_monitor_refresh_ms=",), "warning", 5),
        (("RAY_memory_monitor_refresh_ms=250",), "warning", 5),
        (("NORAY_memory_monitor_refresh_ms=0", "RAY_memory_monitor_refresh_msx=0"), "warning", 5),
    ],
)
def test_a_monitor_that_kills_before_the_floor_is_a_warning(doctor, variables, state, left_percent):  # noqa: F811
    run_raylet(doctor.tree, *variables)
    finding = doctor.find("ray")
    assert finding["state"] == state, finding
    assert abs(finding["figures"]["ray_kills_below_bytes"] - TOTAL * left_percent // 100) <= 2
    if state == "warning":
        assert "raylet 300" in finding["sentence"] and "before the guard's floor of 2.4 GiB" in finding["sentence"]
        assert finding["mend"].startswith("RAY_memory_usage_threshold=0.98 ray start ")


def test_the_threshold_that_is_advised_is_fine(doctor):  # noqa: F811
    for reserve, advised in (("3%", "0.99"), ("8%", "0.98"), ("20%", "0.95"), ("40%", "0.90")):
        run_raylet(doctor.tree, "RAY_memory_usage_threshold=0.5")
        command = doctor.find("ray", SPARKGUARD_RESERVE=reserve)["mend"]
        assert command.startswith(f"RAY_memory_usage_threshold={advised} ")
        if reserve != "3%":  # 99 % is the most that is advised; there it is still too early
            run_raylet(doctor.tree, command.split()[0])
            assert doctor.find("ray", SPARKGUARD_RESERVE=reserve)["state"] == "fine"


def test_an_environment_of_somebody_else_is_unknown(doctor):  # noqa: F811
    doctor.tree.process(300, "raylet")
    finding = doctor.find("ray")
    assert finding["state"] == "unknown" and "/proc/300/environ" in finding["mend"]
    assert finding["figures"] == {"ray_kills_below_bytes": None}


def test_a_machine_without_ray_hears_nothing_of_it(doctor):  # noqa: F811
    assert "ray" not in {finding["id"] for finding in doctor.json()["findings"]}
