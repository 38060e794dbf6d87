/*
 * machine.c - prints the machine on a page: its memory as a bar, its figures, and the findings of sparkguard-doctor.
 */
#include <gnu/libc-version.h>
#include <sys/utsname.h>

#include "report/html/html.h"
#include "report/report.h"
#include "common/text.h"

/* The fill of a part: a background colour and a pattern of lines. */
static const struct {
    const char *ground, *lines;
} fillings[MODEL_PART_COUNT] = {
    [MODEL_PART_GUARDED] = {"#4f9d63", "M0 0"},
    [MODEL_PART_OTHER] = {"#6f93b5", "M0 4h8"},
    [MODEL_PART_PROMISED] = {"#d9b65c", "M2 2h2M6 6h2"},
    [MODEL_PART_CLAIMED] = {"#efe3c2", "M2 0v8M6 0v8"},
    [MODEL_PART_CAPACITY] = {"none", "M0 0"},
    [MODEL_PART_RESERVE] = {"#c4c4c4", "M0 8l8 -8"},
    [MODEL_PART_FLOOR] = {"#cf6a61", "M0 8l8 -8M0 0l8 8"},
};

static void put_patterns(FILE *stream)
{
    fputs("<defs>", stream);
    for (int i = 0; i < MODEL_PART_COUNT; i++)
        fprintf(stream,
                "<pattern id=\"part-%s\" width=\"8\" height=\"8\" patternUnits=\"userSpaceOnUse\"><rect width=\"8\" "
                "height=\"8\" fill=\"%s\"/><path d=\"%s\" stroke=\"#333\"/></pattern>\n",
                model_part_name[i], fillings[i].ground, fillings[i].lines);
    fputs("</defs>", stream);
}

static void put_bar_element(FILE *stream, const struct model_machine *machine, const struct model_part *part)
{
    double total = (double)machine->total_bytes;
    uint64_t kept = part[MODEL_PART_RESERVE].shown_bytes + part[MODEL_PART_FLOOR].shown_bytes, at = 0;
    fputs("<svg class=\"bar\" role=\"img\" width=\"100%\" height=\"30\"><title>The memory of the machine, its parts as "
          "listed below</title>",
          stream);
    put_patterns(stream);
    for (int i = 0; i < MODEL_PART_COUNT; i++) {
        if (i == MODEL_PART_RESERVE) /* drawn at the right end */
            at = machine->total_bytes - kept;
        fprintf(stream,
                "<rect x=\"%.2f%%\" width=\"%.2f%%\" height=\"30\" fill=\"url(#part-%s)\"><title>%s</title></rect>\n",
                100 * (double)at / total, 100 * (double)part[i].shown_bytes / total, model_part_name[i],
                model_part_name[i]);
        at += part[i].shown_bytes;
    }
    fputs("</svg>\n<ul class=\"legend\">\n", stream);
    for (int i = 0; i < MODEL_PART_COUNT; i++) {
        fprintf(stream,
                "<li><svg class=\"swatch\" width=\"24\" height=\"14\" aria-hidden=\"true\"><rect width=\"24\" "
                "height=\"14\" "
                "fill=\"url(#part-%s)\"/></svg> %s %s</li>\n",
                model_part_name[i], model_part_name[i], text_size(part[i].bytes));
    }
    fputs("</ul>\n", stream);
}

static void put_software(FILE *stream)
{
    struct report_html_table table;
    struct utsname name;
    report_html_table_begin(&table, stream, "Software", NULL, 0);
    if (uname(&name) == 0) {
        report_html_fact(&table, "Kernel", text_format("%s %s", name.sysname, name.release));
        report_html_fact(&table, "Architecture", name.machine);
    }
    report_html_fact(&table, "C library", gnu_get_libc_version());
    report_html_fact(&table, "sparkguard-report", SG_VERSION_TEXT);
    report_html_table_end(&table);
}

static void put_machine_table(FILE *stream, const struct model_machine *machine)
{
    struct report_html_table table;
    report_html_table_begin(&table, stream, "Memory", NULL, 0);
    report_html_fact_bytes(&table, "Total (MemTotal)", machine->total_bytes);
    report_html_fact_bytes(&table, "Available (MemAvailable)", machine->available_bytes);
    report_html_fact_bytes(&table, "Usable, before the reserve", machine->usable_bytes);
    report_html_fact_bytes(&table, "Reserve", machine->reserve_bytes);
    report_html_fact_bytes(&table, "Floor", machine->floor_bytes);
    report_html_fact_bytes(&table, "Promised, not resident yet", machine->promised_bytes);
    report_html_fact_bytes(&table, "Unaccounted (CUDA contexts and the like)", machine->unaccounted_bytes);
    report_html_fact_bytes(&table, "Swap", machine->swap_total_bytes);
    report_html_fact_bytes(&table, "Swap used", machine->swap_used_bytes);
    report_html_fact_bytes(&table, "Smallest cgroup limit", machine->cgroup_limit_bytes);
    report_html_fact(&table, "Unified memory", machine->unified < 0 ? "-" : machine->unified == 1 ? "yes" : "no");
    report_html_fact(&table, "All guarded processes decide together", machine->is_sharing ? "yes" : "no");
    report_html_table_end(&table);
}

static void put_device_table(FILE *stream, const struct model_machine *machine)
{
    static const struct report_html_column columns[] = {
        {"Device", REPORT_HTML_NAME},
        {"Name", REPORT_HTML_WORDS},
        {"Held by guarded processes", REPORT_HTML_NUMBERS},
        {"Total", REPORT_HTML_NUMBERS},
    };
    struct report_html_table table = {0};
    for (int i = 0; i < SG_DEVICE_CAPACITY; i++) {
        const struct model_device *device = &machine->device[i];
        if (!device->is_known)
            continue;
        if (table.stream == NULL)
            report_html_table_begin(&table, stream, "Devices that guarded processes use", columns,
                                    sizeof columns / sizeof columns[0]);
        report_html_row(&table, "");
        report_html_cell_count(&table, (uint64_t)i);
        report_html_cell(&table, device->name);
        report_html_cell_bytes(&table, device->live_bytes);
        report_html_cell_bytes(&table, device->total_bytes);
    }
    if (table.stream != NULL)
        report_html_table_end(&table);
}

static void put_other_directories(FILE *stream, const struct model *model)
{
    if (model->own_directory != NULL) {
        fputs("<p class=\"warn\">Your own guarded programs are not counted here: ", stream);
        report_html_element(stream, "bdi", "", model->own_directory);
        fputs("</p>\n", stream);
    }
    if (model->other_directory_count == 0)
        return;
    fputs("<p class=\"warn\">Guarded programs of other users are not counted here: ", stream);
    for (size_t i = 0; i < MODEL_OTHER_DIRECTORY_CAPACITY && model->other_directories[i] != NULL; i++) {
        fputs(i > 0 ? ", " : "", stream);
        report_html_element(stream, "bdi", "", model->other_directories[i]);
    }
    if (model->other_directory_count > MODEL_OTHER_DIRECTORY_CAPACITY)
        fprintf(stream, ", %zu more", model->other_directory_count - MODEL_OTHER_DIRECTORY_CAPACITY);
    fputs(".</p>\n", stream);
}

void report_html_machine(FILE *stream, const struct model *model)
{
    struct model_part part[MODEL_PART_COUNT];
    fputs("<section id=\"machine\">\n<h2>Machine</h2>\n", stream);
    if (model_machine_parts(&model->machine, part))
        put_bar_element(stream, &model->machine, part);
    put_other_directories(stream, model);
    fputs("<div class=\"pair\">\n", stream);
    put_machine_table(stream, &model->machine);
    put_software(stream);
    fputs("</div>\n", stream);
    put_device_table(stream, &model->machine);
    fputs("</section>\n", stream);
}

void report_html_checks(FILE *stream, const struct doctor *doctor)
{
    static const struct report_html_column columns[] = {
        {"Check", REPORT_HTML_NAME}, {"State", REPORT_HTML_WORDS}, {"Finding", REPORT_HTML_WORDS}};
    static const char *const classes[FINDING_STATE_COUNT] = {"class=\"good\"", "class=\"dim\"", "class=\"warn\"",
                                                             "class=\"bad\""};
    struct report_html_table table;
    fputs("<section id=\"checks\">\n<h2>Checks</h2>\n", stream);
    report_html_table_begin(&table, stream, "What sparkguard-doctor finds of this machine", columns,
                            sizeof columns / sizeof columns[0]);
    for (int state = FINDING_DANGER; state >= FINDING_FINE; state--)
        for (size_t i = 0; i < doctor->findings.count; i++) {
            if ((int)doctor->findings.at[i].state != state)
                continue;
            report_html_row(&table, "");
            report_html_cell(&table, doctor->findings.at[i].id);
            report_html_cell_begin(&table, classes[state]);
            fputs(doctor_state_name[state], stream);
            report_html_cell_end(&table);
            report_html_cell(&table, doctor->findings.at[i].sentence);
        }
    report_html_table_end(&table);
    fputs("</section>\n", stream);
}
