"""The watchdog where no memory has to be thrashed: whether it is there, whom it chooses, and what it takes for held.

Over a fake /proc that says what it likes; what processes hold is real, but little.
"""

import subprocess

import pytest
from test_fork import wait_until
from test_machine import place  # noqa: F401

TLS = """
#include <stdlib.h>
#include <unistd.h>
__thread volatile char big[TLS_KIB << 10];
int main(void)
{
    char byte;
    void *volatile block = malloc(300 << 20);
    big[0] = 1;
    return block == NULL || write(1, "ready\\n", 6) != 6 || read(0, &byte, 1) != 1;
}
"""


@pytest.mark.parametrize("kib", [16, 240, 244, 248, 252, 1024])
def test_process_with_much_static_tls_is_watched(place, tmp_path, kib):  # noqa: F811
    """glibc lays it out on each thread's stack."""
    (tmp_path / "tls.c").write_text(TLS)
    subprocess.run(["cc", f"-DTLS_KIB={kib}", "-fno-builtin", "-o", tmp_path / "tls", tmp_path / "tls.c"], check=True)
    tenant = place.tenant([tmp_path / "tls"])
    assert tenant.ready() == []
    wait_until(lambda: place.guard.process(tenant.pid)["watched"])
    seat = place.ledger.of(tenant.pid)
    looked = place.ledger.get("watched_ns", seat)
    wait_until(lambda: place.ledger.get("watched_ns", seat) > looked)
    tenant.end()
