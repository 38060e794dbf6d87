/*
 * selftest_spark.h - scenarios of selftest.c: what the driver of a machine with one memory does (docs/testing.md has the table).
 * Each on the fake machine of selftest_machine.h: 80 MiB are available, 20 of them free and the others page cache.
 */

/* A figure of this process, in MiB; rounded, for a kernel counts it late by up to 64 pages of each thread. */
static long own_mib(const char *name)
{
    char text[8192];
    read_file("/proc/self/status", text, sizeof text);
    const char *found = strstr(text, name);
    return found ? (strtol(found + strlen(name), NULL, 10) + 512) / 1024 : -1;
}

static int is_dev_zero(const void *address)
{
    char line[512], start[32];
    int is_found = 0;
    snprintf(start, sizeof start, "%lx-", (unsigned long)(uintptr_t)address);
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps && fgets(line, sizeof line, maps))
        is_found |= strncmp(line, start, strlen(start)) == 0 && strstr(line, "/dev/zero (deleted)") != NULL;
    if (maps)
        fclose(maps);
    return is_found;
}

/* Whether the meminfo has this line, whose number is in KiB. */
static int shows(const char *name, unsigned kib)
{
    char text[1024];
    read_file(machine_path, text, sizeof text);
    const char *found = strstr(text, name);
    return found && strtoul(found + strlen(name), NULL, 10) == kib;
}

/* SGSIM_POOL=keep */
static void test_pinned_shared(void)
{
    void *host;
    make_machine();
    start();
    long before = own_mib("RssShmem:");
    OK(cuMemHostAlloc(&host, 10 * MIB, 0));
    CHECK(machine("available") == 70 && machine("free") == 10 && machine("cached") == 74 && machine("kept") == 0);
    CHECK(machine("shared") == 10 && machine("locked") == 10 && sgsim_live_bytes("pinned") == 10 * MIB);
    CHECK(shows("\nShmem:", 10240) && shows("\nMlocked:", 10240) && shows("\nCached:", 75776));
    CHECK(own_mib("RssShmem:") - before == 10 && is_dev_zero(host));
    OK(cuMemFreeHost(host));
    CHECK(machine("available") == 80 && machine("free") == 20 && machine("cached") == 64 && machine("kept") == 0);
    CHECK(shows("\nShmem:", 0) && shows("\nMlocked:", 0) && own_mib("RssShmem:") == before);
    OK(cuMemAllocHost_v2(&host, 70 * MIB)); /* 50 MiB of it were page cache */
    CHECK(machine("available") == 10 && machine("free") == 0 && machine("cached") == 64 - 50 + 70);
    FAILS(cuMemAllocHost_v2(&host, 11 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(machine("kept") == 0);
    end_machine();
}

/* SGSIM_RESIDENT=8M: what is beyond it is mapped, and touched by nobody. */
static void test_pinned_beyond_resident(void)
{
    void *small, *large;
    make_machine();
    start();
    long before = own_mib("RssShmem:");
    OK(cuMemHostAlloc(&small, 6 * MIB, 0));
    OK(cuMemHostAlloc(&large, 40 * MIB, 0));
    CHECK(machine("shared") == 46 && own_mib("RssShmem:") - before == 6 && is_dev_zero(large));
    OK(cuMemFreeHost(small));
    OK(cuMemHostAlloc(&small, 8 * MIB, 0));
    CHECK(own_mib("RssShmem:") - before == 8);
    end_machine();
}

/* SGSIM_PINNED=driver SGSIM_POOL=keep */
static void test_pinned_driver(void)
{
    void *host;
    make_machine();
    start();
    OK(cuMemHostAlloc(&host, 10 * MIB, 0));
    CHECK(machine("available") == 70 && machine("shared") == 0 && shows("\nShmem:", 0) && !is_dev_zero(host));
    OK(cuMemFreeHost(host));
    CHECK(machine("available") == 70 && machine("kept") == 10);
    end_machine();
}

/* SGSIM_POOL=keep SGSIM_FRAGMENTED=24M */
static void test_failed_kept(void)
{
    CUdeviceptr one, two;
    void *host;
    make_machine();
    start();
    FAILS(cuMemAlloc_v2(&one, 30 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(machine("kept") == 24 && machine("available") == 56 && sgsim_live_bytes("total") == 0);
    OK(cuMemAlloc_v2(&one, 20 * MIB));
    CHECK(machine("kept") == 4 && machine("available") == 56);
    FAILS(cuMemAlloc_v2(&two, 29 * MIB), CUDA_ERROR_OUT_OF_MEMORY); /* 25 MiB beyond the pool */
    CHECK(machine("kept") == 28 && machine("available") == 32);
    OK(cuMemHostAlloc(&host, 30 * MIB, 0)); /* shared memory needs no blocks */
    OK(cuMemAlloc_v2(&two, 29 * MIB));
    CHECK(machine("kept") == 0 && machine("available") == 1);
    end_machine();
}

/* SGSIM_POOL=keep SGSIM_FAILED=none SGSIM_FRAGMENTED=24M */
static void test_failed_forgotten(void)
{
    CUdeviceptr pointer;
    make_machine();
    start();
    FAILS(cuMemAlloc_v2(&pointer, 30 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(machine("kept") == 0 && machine("available") == 80);
    end_machine();
}

/* A file of the fake machine's proc, beside its meminfo; NULL removes it and its folders. */
static void write_proc(const char *folder, const char *under, const char *name, const char *text)
{
    char path[192];
    snprintf(path, sizeof path, "%s/%s", scratch, folder);
    if (text)
        mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/%s/%s", scratch, folder, under);
    if (text)
        mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/%s/%s/%s", scratch, folder, under, name);
    FILE *file = text ? fopen(path, "we") : NULL;
    CHECK(!text || (file && fputs(text, file) >= 0 && fclose(file) == 0));
    for (int i = 0; !text && i < 3; i++) {
        remove(path);
        *strrchr(path, '/') = '\0';
    }
}

/* A failed request takes all that there is, as of any driver that keeps it; whether it does its module says. */
static void test_pool_listed(void)
{
    CUdeviceptr pointer;
    int status;
    write_proc("driver", "nvidia", "params", "ModifyDeviceFiles: 1\nEnableSystemMemoryPools: 529\n");
    make_machine();
    pid_t other = tenant(6 * MIB, 1);
    waitpid(other, &status, 0);
    CHECK(machine("kept") == 6 && machine("available") == 74);
    start();
    FAILS(cuMemAlloc_v2(&pointer, 82 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(machine("kept") + machine("available") == 80 && machine("available") < 74);
    write_proc("driver", "nvidia", "params", NULL);
    end_machine();
}

static void test_pool_not_listed(void)
{
    CUdeviceptr pointer;
    write_proc("driver", "nvidia", "params", "ModifyDeviceFiles: 1\nEnableSystemMemoryPools: 0\n");
    make_machine();
    start();
    OK(cuMemAlloc_v2(&pointer, 6 * MIB));
    OK(cuMemFree_v2(pointer));
    FAILS(cuMemAlloc_v2(&pointer, 81 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(machine("kept") == 0 && machine("available") == 80);
    write_proc("driver", "nvidia", "params", NULL);
    end_machine();
}

/* SGSIM_POOL=keep */
static void test_drop_caches(void)
{
    CUdeviceptr pointer;
    make_machine();
    start();
    OK(cuMemAlloc_v2(&pointer, 10 * MIB));
    OK(cuMemFree_v2(pointer));
    write_proc("sys", "vm", "drop_caches", "1\n");
    CHECK(machine("kept") == 10 && machine("free") == 70 && machine("available") == 70 && machine("cached") == 4);
    write_proc("sys", "vm", "drop_caches", "2\n");
    CHECK(machine("kept") == 0 && machine("free") == 80 && machine("available") == 80);
    OK(cuMemAlloc_v2(&pointer, 10 * MIB));
    OK(cuMemFree_v2(pointer));
    CHECK(machine("kept") == 10); /* each write is obeyed once */
    write_proc("sys", "vm", "drop_caches", "3");
    OK(cuMemAlloc_v2(&pointer, 4 * MIB));
    CHECK(machine("kept") == 0 && machine("available") == 76);
    write_proc("sys", "vm", "drop_caches", NULL);
    end_machine();
}

/* SGSIM_POOL=keep SGSIM_SHRINK=50:4M */
static void test_pool_shrinks_late(void)
{
    CUdeviceptr pointer;
    struct timespec begin;
    long long kept = 20, now;
    int rounds = 0;
    make_machine();
    start();
    OK(cuMemAlloc_v2(&pointer, 20 * MIB));
    OK(cuMemFree_v2(pointer));
    clock_gettime(CLOCK_MONOTONIC, &begin);
    sgsim_machine_move(machine_path, "other", 60 * (long long)MIB); /* nothing is free, and no cache is left */
    CHECK((machine("kept") == 20 && machine("free") == 0) || elapsed_ms(&begin) >= 50);
    while (kept > 16 && elapsed_ms(&begin) < 60000) {
        now = machine("kept");
        rounds += now != kept;
        kept = now;
    }
    CHECK(kept == 16 && rounds == 1 && elapsed_ms(&begin) >= 50); /* with that, memory is not short any more */
    CHECK(machine("free") == 4 && machine("available") == 4);
    end_machine();
}

/* SGSIM_POOL=keep SGSIM_SHRINK=0:1G: idle memory of others goes before the pool, as far as there is swap. */
static void test_idle_goes_first(void)
{
    CUdeviceptr pointer;
    make_machine();
    start();
    OK(cuMemAlloc_v2(&pointer, 20 * MIB));
    OK(cuMemFree_v2(pointer));
    sgsim_machine_move(machine_path, "idle", 40 * (long long)MIB);
    sgsim_machine_move(machine_path, "other", 22 * (long long)MIB);
    CHECK(sgsim_machine_bytes(machine_path, "swapped") > 2 * (long long)MIB && machine("kept") == 20);
    sgsim_machine_move(machine_path, "other", 20 * (long long)MIB); /* 5 MiB of swap were free */
    CHECK(machine("swapped") == 5 && machine("kept") < 20 && shows("\nSwapFree:", 0));
    end_machine();
}

/* SGSIM_LISTS=24: 12 KiB for 2 MiB, which no pool keeps. */
static void test_lists(void)
{
    CUdeviceptr pointer;
    void *host;
    make_machine();
    start();
    OK(cuMemAlloc_v2(&pointer, 20 * MIB));
    CHECK(sgsim_machine_bytes(machine_path, "available") == (long long)(60 * MIB - 120 * 1024));
    OK(cuMemHostAlloc(&host, 20 * MIB, 0));
    CHECK(sgsim_machine_bytes(machine_path, "available") == (long long)(40 * MIB - 120 * 1024));
    OK(cuMemFree_v2(pointer));
    OK(cuMemFreeHost(host));
    CHECK(machine("available") == 80);
    FAILS(cuMemAlloc_v2(&pointer, 80 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAlloc_v2(&pointer, 79 * MIB));
    end_machine();
}

/* A kernel's CMA is not for drivers, though it is available. */
static void test_cma(void)
{
    CUdeviceptr pointer;
    void *host;
    machine_text = cma_text;
    make_machine();
    start();
    FAILS(cuMemAlloc_v2(&pointer, 73 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAlloc_v2(&pointer, 72 * MIB));
    OK(cuMemHostAlloc(&host, 8 * MIB, 0));
    CHECK(machine("available") == 0 && shows("\nCmaFree:", 8192));
    end_machine();
}

static char own_pages[64 * 1024] __attribute__((aligned(65536)));

static void test_register(void)
{
    make_machine();
    start();
    OK(cuMemHostRegister_v2(own_pages, sizeof own_pages, 0));
    CHECK(shows("\nMlocked:", 64) && machine("available") == 80);
    OK(cuMemHostUnregister(own_pages));
    CHECK(shows("\nMlocked:", 0) && machine("locked") == 0);
    end_machine();
}

/* SGSIM_REGISTER=idle */
static void test_register_idle(void)
{
    make_machine();
    start();
    OK(cuMemHostRegister_v2(own_pages, sizeof own_pages, 0));
    CHECK(shows("\nMlocked:", 0) && sgsim_live_bytes("registered") == sizeof own_pages);
    OK(cuMemHostUnregister(own_pages));
    end_machine();
}

/* SGSIM_REGISTER=missing */
static void test_register_missing(void)
{
    start();
    FAILS(cuMemHostRegister_v2(own_pages, sizeof own_pages, 0), CUDA_ERROR_NOT_SUPPORTED);
    FAILS(cuMemHostUnregister(own_pages), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    CHECK(sgsim_live_bytes("registered") == 0);
}
