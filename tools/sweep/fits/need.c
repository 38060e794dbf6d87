/*
 * need.c - see need.h.
 */
#include "sweep/fits/need.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/bytes.h"
#include "common/text.h"

#define MOST_BYTES (UINT64_C(1) << 62)

void fits_need_add(struct fits_need *need, const char *name, double bytes, const char *how, ...)
{
    va_list arguments;
    if (need->term_count == FITS_TERMS)
        return;
    struct fits_term *term = &need->term[need->term_count++];
    term->name = name;
    term->bytes = bytes < (double)MOST_BYTES ? (uint64_t)(bytes > 0 ? bytes + 0.5 : 0) : MOST_BYTES;
    va_start(arguments, how);
    term->how = text_formatv(how, arguments);
    va_end(arguments);
}

void fits_need_note(struct fits_need *need, const char *format, ...)
{
    va_list arguments;
    if (need->note_count == FITS_NOTES)
        return;
    va_start(arguments, format);
    need->note[need->note_count++] = text_formatv(format, arguments);
    va_end(arguments);
}

void fits_need_miss(struct fits_need *need, const char *name, const char *teller)
{
    if (need->missing_count == FITS_TERMS)
        return;
    need->missing[need->missing_count] = name;
    need->teller[need->missing_count++] = teller;
}

enum fits_verdict fits_need_judge(const struct fits_need *need, const struct fits_headroom *headroom)
{
    if (headroom->headroom_bytes == SG_UNKNOWN)
        return FITS_CANNOT_TELL;
    if (fits_need_sum(need) > headroom->headroom_bytes)
        return FITS_DOES_NOT;
    return need->missing_count > 0 ? FITS_CANNOT_TELL : FITS_DOES;
}

uint64_t fits_need_sum(const struct fits_need *need)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < need->term_count; i++)
        sum = bytes_min(bytes_add(sum, need->term[i].bytes), MOST_BYTES);
    return sum;
}

void fits_need_add_weights(struct fits_need *need, double parameters, const struct fits_dtype *dtype)
{
    fits_need_add(need, "weights", parameters * dtype->bits / 8, "%.4gB parameters x %g bits (%s)", parameters / 1e9,
                  dtype->bits, dtype->title);
    if (dtype->scale_text != NULL)
        fits_need_add(need, "scales", parameters * dtype->scale_bits / 8, "%s", dtype->scale_text);
}

uint64_t fits_headroom_of(const struct model_machine *machine)
{
    if (machine->usable_bytes == SG_UNKNOWN || machine->reserve_bytes == SG_UNKNOWN)
        return SG_UNKNOWN;
    return bytes_min(bytes_less(machine->usable_bytes, machine->reserve_bytes), machine->limit_left_bytes);
}

struct fits_headroom fits_headroom_now(void)
{
    const struct model_scope scope = {.job = NULL};
    struct model *model = model_build(&scope);
    struct fits_headroom headroom = {fits_headroom_of(&model->machine), model->machine.usable_bytes,
                                     model->machine.reserve_bytes, model->machine.total_bytes};
    return headroom;
}

/* Prints one line; what a term was computed from wraps below itself on a narrow terminal. */
static void put_term(const struct style *style, const int width[2], const char *name, const char *size, const char *how)
{
    fprintf(style->stream, "%-*s %*s ", width[0], name, width[1], size);
    style_words(style, (size_t)width[0] + (size_t)width[1] + 2, STYLE_PLAIN, how);
}

static void put_table(const struct fits_need *need, const struct style *style)
{
    int width[2] = {(int)strlen("needed"), (int)strlen(text_size(fits_need_sum(need)))};
    for (size_t i = 0; i < need->term_count; i++) {
        int name = (int)strlen(need->term[i].name), number = (int)strlen(text_size(need->term[i].bytes));
        width[0] = name > width[0] ? name : width[0];
        width[1] = number > width[1] ? number : width[1];
    }
    fputs(style_colour_on(style, STYLE_DIM), style->stream);
    put_term(style, width, "TERM", "SIZE", "COMPUTED FROM");
    fputs(style_colour_off(style, STYLE_DIM), style->stream);
    for (size_t i = 0; i < need->term_count; i++)
        put_term(style, width, need->term[i].name, text_size(need->term[i].bytes), need->term[i].how);
    put_term(style, width, "needed", text_size(fits_need_sum(need)), "the sum");
}

/* Returns the sentence about what is not in the sum. */
static char *missing_text(const struct fits_need *need)
{
    const char *names = "", *tellers = "";
    for (size_t i = 0; i < need->missing_count; i++) {
        text_append(&names, i + 1 == need->missing_count ? " and " : ", ", need->missing[i]);
        if (strstr(tellers, need->teller[i]) == NULL)
            text_append(&tellers, ", ", need->teller[i]);
    }
    bool is_one = need->missing_count == 1 && names[strlen(names) - 1] != 's';
    return text_format("cannot tell: %s %s not in the sum: give %s", names, is_one ? "is" : "are", tellers);
}

static void put_verdict(const struct fits_need *need, const struct fits_headroom *headroom, const struct style *style)
{
    uint64_t needed = fits_need_sum(need);
    enum fits_verdict verdict = fits_need_judge(need, headroom);
    bool fits = needed <= headroom->headroom_bytes;
    const char *difference = text_size(fits ? headroom->headroom_bytes - needed : needed - headroom->headroom_bytes);
    const char *headroom_size = text_size(headroom->headroom_bytes), *reserve = text_size(headroom->reserve_bytes);
    char *line;
    if (headroom->headroom_bytes == SG_UNKNOWN)
        line = text_copy("cannot tell whether it fits: the room is unknown here", SIZE_MAX);
    else if (verdict == FITS_CANNOT_TELL)
        line = missing_text(need);
    else if (fits)
        line = text_format("fits: room %s now (above the reserve of %s), %s of it stay free", headroom_size, reserve,
                           difference);
    else
        line = text_format("does not fit: room %s now (above the reserve of %s), %s are missing", headroom_size,
                           reserve, difference);
    style_words(style, 0, verdict == FITS_CANNOT_TELL ? STYLE_YELLOW : fits ? STYLE_GREEN : STYLE_RED, line);
}

void fits_need_render(const struct fits_need *need, const struct fits_headroom *headroom, const struct style *style)
{
    put_table(need, style);
    fputc('\n', style->stream);
    for (size_t i = 0; i < need->note_count; i++)
        style_words(style, 0, STYLE_PLAIN, need->note[i]);
    put_verdict(need, headroom, style);
}

void fits_need_set_json(const struct fits_need *need, json_t *object)
{
    json_t *terms = json_array(), *notes = json_array(), *missing = json_array();
    for (size_t i = 0; i < need->term_count; i++) {
        json_t *term = json_object();
        json_object_set_new(term, "name", json_of_text(need->term[i].name));
        json_object_set_new(term, "bytes", json_of_number(need->term[i].bytes));
        json_object_set_new(term, "computed_from", json_of_text(need->term[i].how));
        json_array_append_new(terms, term);
    }
    for (size_t i = 0; i < need->note_count; i++)
        json_array_append_new(notes, json_of_text(need->note[i]));
    for (size_t i = 0; i < need->missing_count; i++)
        json_array_append_new(missing, json_of_text(need->missing[i]));
    json_object_set_new(object, "terms", terms);
    json_object_set_new(object, "missing", missing);
    json_object_set_new(object, "notes", notes);
    json_object_set_new(object, "needed_bytes", json_of_number(fits_need_sum(need)));
}

void fits_headroom_set_json(const struct fits_need *need, const struct fits_headroom *headroom, json_t *object)
{
    enum fits_verdict verdict = fits_need_judge(need, headroom);
    json_object_set_new(object, "usable_bytes", json_of_number(headroom->usable_bytes));
    json_object_set_new(object, "reserve_bytes", json_of_number(headroom->reserve_bytes));
    json_object_set_new(object, "room_bytes", json_of_number(headroom->headroom_bytes));
    json_object_set_new(object, "fits", verdict != FITS_CANNOT_TELL ? json_boolean(verdict == FITS_DOES) : json_null());
}
