/*
 * find.c - finds the files of a model in a folder or by one of them, and reads what tells its size.
 */
#include "sweep/fits/fits.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/text.h"
#include "common/tool.h"

enum { FILES = 4096 };

static char *join(const char *folder, const char *name)
{
    return text_format("%s/%s", folder, name);
}

/* Reads one file of weights in a folder. A reason gets the file's name. */
static bool read_part(struct fits_model *model, struct fits_dtype_sums *sums, const char *folder, const char *name)
{
    size_t mark = tool_arena_mark(); /* a model has many files, and nothing of the text of one is kept */
    bool is_read = fits_read_safetensors(model, sums, join(folder, name));
    if (!is_read)
        model->wrong = text_format("%s: %s", text_printable(name, false), model->wrong);
    else
        tool_arena_release(mark);
    return is_read;
}

static bool is_there(const char *folder, const char *name)
{
    return access(join(folder, name), F_OK) == 0;
}

/* Returns the names of the files that an index names, as the keys of an object; NULL after fits_model_fail(). */
static json_t *files_of_index(struct fits_model *model, const json_t *map)
{
    json_t *files = json_object();
    const char *tensor;
    json_t *file;
    json_object_foreach((json_t *)(uintptr_t)map, tensor, file)
    {
        const char *name = json_string_value(file);
        if (name == NULL || name[0] == '\0' || name[0] == '.' || strchr(name, '/') != NULL ||
            json_object_size(files) == FILES) {
            fits_model_fail(model, "its index names a file that is not in its folder");
            return NULL;
        }
        json_object_set_new(files, name, json_true());
    }
    return files;
}

/* Reads the headers of the files that an index names. With one missing, the index's own sum stands for all. */
static bool read_index(struct fits_model *model, const char *folder, const char *path)
{
    struct fits_dtype_sums sums = {.count = 0};
    json_t *root = fits_read_json(model, path, FITS_HEADER_MOST);
    json_t *files = root != NULL ? files_of_index(model, json_object_get(root, "weight_map")) : NULL;
    double total = json_number_value(json_object_get(json_object_get(root, "metadata"), "total_size"));
    const char *name;
    json_t *unused;
    json_object_foreach(files, name, unused)
    {
        model->missing_count += !is_there(folder, name);
    }
    if (files != NULL && json_object_size(files) > 0 && model->missing_count == 0) {
        model->basis = FITS_FROM_HEADERS;
        json_object_foreach(files, name, unused)
        {
            if (!read_part(model, &sums, folder, name))
                break;
        }
        fits_dtype_sums_end(&sums, model);
    } else if (files != NULL && total > 0 && total < (double)FITS_MOST) {
        model->basis = FITS_FROM_INDEX;
        model->weight_bytes = (uint64_t)total;
        model->file_count = json_object_size(files);
        model->tensor_count = json_object_size(json_object_get(root, "weight_map"));
    } else if (files != NULL)
        fits_model_fail(model, "its index names no total_size, and its files are not there");
    model->format = "safetensors";
    return model->wrong == NULL;
}

/* Reads a GGUF file, and the other parts of a split one: NAME-00001-of-00003.gguf. */
static bool read_gguf(struct fits_model *model, const char *path)
{
    struct fits_dtype_sums sums = {.count = 0};
    uint64_t split_count, ignored;
    size_t length = strlen(path);
    const char *of = length > 20 ? path + length - 20 : ""; /* "-00001-of-00003.gguf" */
    model->format = "GGUF";
    model->basis = FITS_FROM_HEADERS;
    bool is_split = fnmatch("-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9].gguf", of, 0) == 0;
    unsigned long count = is_split ? strtoul(of + 10, NULL, 10) : 1;
    if (count > FILES)
        return fits_model_fail(model, "more than 4096 parts");
    for (unsigned long i = 1; is_split && i <= count; i++) {
        size_t mark = tool_arena_mark();
        char *part = text_format("%.*s-%05lu-of-%05lu.gguf", (int)(length - 20), path, i, count);
        bool is_read = fits_read_gguf(model, &sums, part, &ignored);
        if (!is_read) {
            model->wrong = text_format("part %lu of %lu: %s", i, count, model->wrong);
            return false;
        }
        tool_arena_release(mark);
    }
    if (!is_split && !fits_read_gguf(model, &sums, path, &split_count))
        return false;
    if (!is_split && split_count > 1)
        return fits_model_fail(model, "a part of a split model, without its name, which tells the others");
    fits_dtype_sums_end(&sums, model);
    return true;
}

/* Names of weights in a folder, sorted. */
struct names {
    char *name[FILES];
    size_t count;
};

static void list_names(struct names *names, const char *folder, const char *pattern)
{
    DIR *stream = opendir(folder);
    const struct dirent *entry;
    while (stream != NULL && names->count < FILES && (entry = readdir(stream)) != NULL)
        if (fnmatch(pattern, entry->d_name, FNM_PERIOD) == 0)
            names->name[names->count++] = text_copy(entry->d_name, SIZE_MAX);
    if (stream != NULL)
        closedir(stream);
}

/* The number of parts that the name of a part tells (model-00001-of-00004.safetensors); 1: the name is not of a
 * part. */
static size_t parts_of(const char *name)
{
    const char *slash = strrchr(name, '/'), *of = strstr(slash != NULL ? slash : name, "-of-");
    unsigned parts = 0;
    char rest[16] = "";
    return of != NULL && sscanf(of, "-of-%5u%15s", &parts, rest) == 2 && strcmp(rest, ".safetensors") == 0 ? parts : 1;
}

/* Reads all safetensors files of a folder without an index; model.safetensors alone where it is one of them. */
static bool read_safetensors_of(struct fits_model *model, const char *folder, const struct names *names)
{
    struct fits_dtype_sums sums = {.count = 0};
    bool has_model = is_there(folder, "model.safetensors");
    model->format = "safetensors";
    model->basis = FITS_FROM_HEADERS;
    for (size_t i = 0; i < names->count; i++)
        if ((!has_model || strcmp(names->name[i], "model.safetensors") == 0) &&
            !read_part(model, &sums, folder, names->name[i]))
            return false;
    if (!has_model && names->count > 0 && parts_of(names->name[0]) > names->count)
        return fits_model_fail(model, "the folder has %zu of %zu parts, and no index", names->count,
                               parts_of(names->name[0]));
    fits_dtype_sums_end(&sums, model);
    return true;
}

/* Returns the only GGUF model of a folder, or NULL after fits_model_fail(): quantisations of one model lie side by
 * side. */
static const char *only_gguf(struct fits_model *model, const struct names *names)
{
    const char *only = NULL;
    for (size_t i = 0; i < names->count; i++) {
        const char *name = names->name[i];
        bool is_later = fnmatch("*-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9].gguf", name, 0) == 0 &&
                        strstr(name, "-00001-of-") == NULL;
        if (is_later || strncmp(name, "mmproj", 6) == 0)
            continue;
        if (only != NULL) {
            fits_model_fail(model, "several GGUF models are in this folder; name one of the files");
            return NULL;
        }
        only = name;
    }
    if (only == NULL)
        fits_model_fail(model, "the first part of a split GGUF model is not there");
    return only;
}

static bool read_weights_of(struct fits_model *model, const char *folder)
{
    struct names *tensors = tool_allocate(1, sizeof *tensors), *ggufs = tool_allocate(1, sizeof *ggufs);
    static const char index[] = "model.safetensors.index.json";
    list_names(tensors, folder, "*.safetensors");
    list_names(ggufs, folder, "*.gguf");
    if (is_there(folder, index))
        return read_index(model, folder, join(folder, index));
    if (tensors->count > 0)
        return read_safetensors_of(model, folder, tensors);
    if (ggufs->count == 0)
        return true;
    const char *only = only_gguf(model, ggufs);
    return only != NULL && read_gguf(model, join(folder, only));
}

static bool read_folder(struct fits_model *model, const char *folder)
{
    if (!read_weights_of(model, folder))
        return false;
    if (is_there(folder, "config.json") && (model->format == NULL || strcmp(model->format, "GGUF") != 0)) {
        bool is_read = fits_read_config(model, join(folder, "config.json"));
        if (model->format == NULL)
            model->format = "config.json";
        if (!is_read)
            return false;
    }
    if (model->basis == FITS_NOTHING)
        fits_model_fail(model, model->format == NULL ? "neither safetensors nor GGUF nor config.json is in this folder"
                                                     : "its config.json does not tell the size of the model");
    return model->wrong == NULL;
}

/* Reads the config.json beside a file, if there is one that can be read. */
static void read_config_beside(struct fits_model *model, const char *folder)
{
    char *path = join(folder, "config.json");
    struct fits_model tried = *model;
    if (access(path, F_OK) == 0 && fits_read_config(&tried, path))
        *model = tried;
}

/* Tells an index, which has a weight_map, from a config. */
static bool is_index(const char *path)
{
    char *text = NULL;
    size_t length;
    if (fits_source_text(path, FITS_HEADER_MOST, &text, &length) != NULL)
        return false;
    return memmem(text, length, "\"weight_map\"", 12) != NULL;
}

static bool read_model_file(struct fits_model *model, const char *path, const char *folder)
{
    struct fits_dtype_sums sums = {.count = 0};
    char start[9] = "";
    struct fits_source *source = tool_allocate(1, sizeof *source);
    char *why = fits_source_open(source, path);
    if (why != NULL)
        fits_model_fail(model, "%s", why);
    else {
        (void)(fits_source_read(source, 0, start, 8) || fits_source_read(source, 0, start, 1));
        fits_source_close(source);
    }
    if (model->wrong != NULL)
        return false;
    if (memcmp(start, "GGUF", 4) == 0)
        return read_gguf(model, path);
    /* A JSON text begins with a brace; the length of a header with one there would be more than 2^56. */
    if (start[0] == '{' && start[7] != '\0') {
        if (is_index(path) && !read_index(model, folder, path))
            return false;
        if (model->format != NULL) {
            read_config_beside(model, folder);
            return true;
        }
        model->format = "config.json";
        return fits_read_config(model, path) &&
               (model->basis != FITS_NOTHING || fits_model_fail(model, "it does not tell the size of the model"));
    }
    if (parts_of(path) > 1)
        return fits_model_fail(model, "it is one of %zu parts; name the folder, or model.safetensors.index.json",
                               parts_of(path));
    model->format = "safetensors";
    model->basis = FITS_FROM_HEADERS;
    if (!fits_read_safetensors(model, &sums, path))
        return false;
    fits_dtype_sums_end(&sums, model);
    read_config_beside(model, folder);
    return true;
}

bool fits_model_read(struct fits_model *model, const char *path)
{
    struct stat status;
    *model = (struct fits_model){.basis = FITS_NOTHING};
    if (stat(path, &status) != 0 && fits_is_shape(path))
        return fits_read_shape(model, path);
    if (stat(path, &status) != 0)
        return fits_model_fail(model,
                               errno == ENOENT
                                   ? "%s; MODEL is a folder with a model's files, one of them, or its shape, "
                                     "for example 8B"
                                   : "%s",
                               strerror(errno));
    if (S_ISDIR(status.st_mode))
        return read_folder(model, path);
    bool is_read = read_model_file(model, path, dirname(text_copy(path, SIZE_MAX)));
    return is_read && model->wrong == NULL;
}
