/*
 * breakdown.c - computes the parts of the machine's memory for a bar, and the composition of a process's peak.
 */
#include "common/bytes.h"
#include "common/text.h"
#include "model/model.h"

const char *const model_part_name[MODEL_PART_COUNT] = {
    [MODEL_PART_GUARDED] = "guarded", [MODEL_PART_OTHER] = "other",   [MODEL_PART_PROMISED] = "promised",
    [MODEL_PART_CLAIMED] = "claimed", [MODEL_PART_CAPACITY] = "room", [MODEL_PART_RESERVE] = "reserve",
    [MODEL_PART_FLOOR] = "floor",
};

static uint64_t known(uint64_t bytes)
{
    return bytes == SG_UNKNOWN ? 0 : bytes;
}

/* Used memory counts as guarded up to the guarded bytes that are resident already. The rest belongs to others. */
bool model_machine_parts(const struct model_machine *machine, struct model_part part[MODEL_PART_COUNT])
{
    if (machine->total_bytes == SG_UNKNOWN || machine->available_bytes == SG_UNKNOWN || machine->total_bytes == 0)
        return false;
    uint64_t used = bytes_less(machine->total_bytes, machine->available_bytes);
    uint64_t arrived = bytes_less(machine->guarded_bytes, machine->promised_bytes);
    uint64_t reserve = known(machine->reserve_bytes);
    part[MODEL_PART_GUARDED].bytes = bytes_min(arrived, used);
    part[MODEL_PART_OTHER].bytes = used - part[MODEL_PART_GUARDED].bytes;
    part[MODEL_PART_PROMISED].bytes = machine->promised_bytes;
    part[MODEL_PART_CLAIMED].bytes = machine->claimed_bytes;
    part[MODEL_PART_CAPACITY].bytes = bytes_less(machine->usable_bytes, reserve);
    part[MODEL_PART_RESERVE].bytes = reserve;
    part[MODEL_PART_FLOOR].bytes = known(machine->floor_bytes);
    /* The bar shows the machine: memory that a cgroup withholds stays blank, and a reserve partly in use is shorter. */
    uint64_t left = machine->total_bytes;
    static const int order[] = {MODEL_PART_GUARDED, MODEL_PART_OTHER,   MODEL_PART_PROMISED, MODEL_PART_CLAIMED,
                                MODEL_PART_FLOOR,   MODEL_PART_RESERVE, MODEL_PART_CAPACITY};
    for (size_t i = 0; i < MODEL_PART_COUNT; i++) {
        uint64_t inside = order[i] == MODEL_PART_RESERVE ? part[MODEL_PART_FLOOR].bytes : 0;
        part[order[i]].shown_bytes = bytes_min(bytes_less(part[order[i]].bytes, inside), left);
        left -= part[order[i]].shown_bytes;
    }
    return true;
}

char *model_peak_text(const struct model_process *process)
{
    char *text = text_copy("", 0);
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
        text = text_format("%s%s%s %s", text, text[0] ? ", " : "", model_domain_name[largest],
                           text_size(process->domain[largest].at_peak_bytes));
    }
}
