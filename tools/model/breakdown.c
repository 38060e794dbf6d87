/*
 * breakdown.c - what the memory of the machine is made of, as a bar shows it.
 */
#include <stdlib.h>

#include "common/text.h"
#include "model/model.h"

const char *const report_part_name[REPORT_PART_COUNT] = {
    [REPORT_PART_GUARDED] = "guarded", [REPORT_PART_OTHER] = "other",     [REPORT_PART_PROMISED] = "promised",
    [REPORT_PART_ROOM] = "room",       [REPORT_PART_RESERVE] = "reserve", [REPORT_PART_FLOOR] = "floor",
};

static uint64_t known(uint64_t bytes)
{
    return bytes == SG_UNKNOWN ? 0 : bytes;
}

/* What the kernel calls used is guarded as far as guarded bytes are there already, and other people's beyond that. */
bool report_machine_parts(const struct report_machine *machine, struct report_part part[REPORT_PART_COUNT])
{
    if (machine->total_bytes == SG_UNKNOWN || machine->available_bytes == SG_UNKNOWN || machine->total_bytes == 0)
        return false;
    uint64_t used = report_less(machine->total_bytes, machine->available_bytes);
    uint64_t arrived = report_less(machine->guarded_bytes, machine->promised_bytes);
    uint64_t reserve = known(machine->reserve_bytes);
    part[REPORT_PART_GUARDED].bytes = report_min(arrived, used);
    part[REPORT_PART_OTHER].bytes = used - part[REPORT_PART_GUARDED].bytes;
    part[REPORT_PART_PROMISED].bytes = machine->promised_bytes;
    part[REPORT_PART_ROOM].bytes = report_less(machine->usable_bytes, reserve);
    part[REPORT_PART_RESERVE].bytes = reserve;
    part[REPORT_PART_FLOOR].bytes = known(machine->floor_bytes);
    /* The bar is the machine's: what a cgroup withholds stays blank, and a reserve already eaten into is shown short. */
    uint64_t left = machine->total_bytes;
    static const int order[] = {REPORT_PART_GUARDED, REPORT_PART_OTHER,   REPORT_PART_PROMISED,
                                REPORT_PART_FLOOR,   REPORT_PART_RESERVE, REPORT_PART_ROOM};
    for (size_t i = 0; i < REPORT_PART_COUNT; i++) {
        uint64_t inside = order[i] == REPORT_PART_RESERVE ? part[REPORT_PART_FLOOR].bytes : 0;
        part[order[i]].shown_bytes = report_min(report_less(part[order[i]].bytes, inside), left);
        left -= part[order[i]].shown_bytes;
    }
    return true;
}

char *report_peak_text(const struct report_process *process)
{
    char *text = report_text_copy("", 0);
    bool is_taken[SG_DOMAIN_COUNT] = {false};
    for (;;) {
        int largest = -1;
        for (int i = 0; i < SG_DOMAIN_COUNT; i++)
            if (!is_taken[i] && process->domain[i].at_peak_bytes > 0 &&
                (largest < 0 || process->domain[i].at_peak_bytes > process->domain[largest].at_peak_bytes))
                largest = i;
        if (largest < 0)
            return text;
        is_taken[largest] = true;
        char size[REPORT_SIZE_TEXT];
        char *longer = report_text_format("%s%s%s %s", text, text[0] ? ", " : "", report_domain_name[largest],
                                          report_size_text(size, process->domain[largest].at_peak_bytes));
        free(text);
        text = longer;
    }
}
