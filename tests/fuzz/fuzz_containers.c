/*
 * The figures of a container and root's words beside them: any figures of the right size, or a file of another size,
 * and any words. No more counts than the container's cgroup leaves, whatever they say.
 */
#include "fuzz.h"

#include "admit/containers.h"
#include "base/clock.h"
#include "base/options.h"
#include "sparkguard_figures.h"

#include <time.h>

#define LEFT_BYTES (UINT64_C(1) << 30)

FUZZ_CAPACITY(2048); /* of root's words */

static void look(const struct sg_container_figures *container, void *data)
{
    fuzz_need(container->promised_bytes <= LEFT_BYTES && strlen(container->name) < 2048, "more than counts is told");
    ++*(int *)data;
}

static const char meminfo[] = "MemTotal: 16777216 kB\nMemFree: 8388608 kB\nMemAvailable: 8388608 kB\n";

static void make_machine(void)
{
    fuzz_put("proc/meminfo", meminfo, sizeof meminfo - 1);
    fuzz_put("sys/fs/cgroup/a/b/memory.max", "max\n", 4);
    fuzz_put("sys/fs/cgroup/a/b/memory.current", "1048576\n", 8);
    fuzz_put("sys/fs/cgroup/a/memory.max", "2147483648\n", 11);
    fuzz_put("sys/fs/cgroup/a/memory.current", "1073741824\n", 11);
    strcpy(sg_options.system_root, fuzz_folder());
}

/* The first byte of an input: how many of the next ones change the figures. Those behind are root's words; none: good
 * ones. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct sg_snapshot snapshot;
    static const char good[] = "/a/b\nbox\n";
    struct sg_figures figures[2] = {{.magic = SG_FIGURES_MAGIC, .version = SG_FIGURES_VERSION}};
    size_t changes = size > 0 ? data[0] : 0, at = size > 0 ? 1 : 0;
    int told = 0;
    if (sg_options.system_root[0] == '\0')
        make_machine();
    changes = changes < size - at ? changes : size - at;
    figures[0].time_ns = sg_clock_ns(CLOCK_MONOTONIC);
    figures[0].promised_bytes = UINT64_C(1) << 40;
    fuzz_patch(figures, sizeof figures[0], data + at, changes);
    at += changes;
    fuzz_put("run/sparkguard/promises/box", figures, sizeof figures[0] + (changes == 5 ? 1 : 0));
    fuzz_put("run/sparkguard/promises/.box", at < size ? (const void *)(data + at) : good,
             at < size ? size - at : sizeof good - 1);
    usleep(6000); /* pace: a reading is due 5 ms after the last one */
    sg_containers_read(&snapshot, true);
    fuzz_need(sg_containers.promised_bytes <= LEFT_BYTES && sg_containers.most_bytes <= sg_containers.promised_bytes,
              "more than the cgroup leaves");
    fuzz_need(memchr(sg_containers.most_name, '\0', sizeof sg_containers.most_name) != NULL, "a name without an end");
    fuzz_need(changes != 0 || at < size || sg_containers.promised_bytes == LEFT_BYTES, "good figures do not count");
    sg_containers_visit(&snapshot, look, &told);
    fuzz_need(told <= 1 && (changes != 0 || at < size || told == 1), "good figures are not told");
    return 0;
}
