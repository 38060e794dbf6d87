"""Programs with a sanitizer's runtime behave as without the guard: everything passes through, and the record says so."""

import subprocess

import pytest
from lib.target import CC
from lib.waiting import wait_until

MIB = 1 << 20
SOURCE = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
static int shared;
static void *work(void *argument)
{
    for (int i = 0; i < 100; i++) {
        char *block = malloc(200000 + 1000 * i);
        memset(block, 1, 1000);
        block = realloc(block, 400000);
        free(block);
    }
    if (argument != NULL)
        shared++;
    return NULL;
}
int main(int count, char **arguments)
{
    char byte, *volatile block = malloc(64 << 20), *how = arguments[1];
    memset(block, 1, 64 << 20);
    munmap(mmap(NULL, 8 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 8 << 20);
    pthread_t thread[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&thread[i], NULL, work, strcmp(how, "race") == 0 ? &shared : NULL);
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    if (fork() == 0)
        _exit(7);
    int status;
    wait(&status);
    printf("%d\\n", WEXITSTATUS(status));
    fflush(stdout);
    if (strcmp(how, "wait") == 0)
        (void)!read(0, &byte, 1);
    if (strcmp(how, "overflow") == 0)
        block[64 << 20] = 1;
    for (int i = 0; strcmp(how, "leak") == 0 && i < 16; i++)
        (void)!malloc(1000); /* a register or the stack may keep the address of the last one */
    free(block);
    return 0;
}
"""
FAULTS = {"thread": ("race", 66), "leak": ("leak", 23), "address": ("overflow", 1)}  # what it finds, and its status then


@pytest.fixture(scope="module")
def program(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "program.c").write_text(SOURCE)
    command = [CC, "-g", "-w", "-O0", f"-fsanitize={request.param}", "-o", folder / "program", folder / "program.c", "-pthread"]
    if subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip(f"no -fsanitize={request.param} here")
    if subprocess.run([folder / "program", "well"], capture_output=True).returncode != 0:
        pytest.skip(f"a program with -fsanitize={request.param} does not run here without the guard either")
    return folder / "program"


@pytest.mark.parametrize("program", FAULTS, indirect=True)
def test_a_program_with_a_sanitizer_runs_as_without_the_guard(guard, program):
    done = guard.run([program, "well"], env={"SPARKGUARD_LIMIT": "32M"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "7\n", "")


@pytest.mark.parametrize("program, fault", [(name, FAULTS[name]) for name in FAULTS], indirect=["program"])
def test_a_sanitizer_finds_what_it_is_for(guard, program, fault):
    how, status = fault
    done = guard.run([program, how])
    assert done.returncode == status and "Sanitizer" in done.stderr


@pytest.mark.parametrize("program", FAULTS, indirect=True)
def test_the_record_says_that_all_passes_through(guard, program):
    process = guard.popen([program, "wait"], stdin=subprocess.PIPE)
    try:
        assert process.stdout.readline() == "7\n"
        entry = wait_until(lambda: guard.processes(process.pid))[0]
        assert ["passes everything through" in event["what"] for event in entry["events"]] == [True]
        assert entry["live_bytes"] == 0
        process.communicate("x", timeout=60)
        assert process.returncode == 0
        assert guard.processes(process.pid) == []  # as of any program that has ended by itself, and took nothing
    finally:
        process.kill()
        process.communicate()
