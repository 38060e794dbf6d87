/*
 * memory_stress.c - how much will the GPU give? Takes blocks of 1, 2, 4, 8, ... steps until one is
 * refused, shows that the refusal is an error a program can handle, and goes on.
 *
 * On a machine with unified memory this is the program that freezes it. Under the guard it ends
 * with a report instead:   LD_PRELOAD=libsparkguard.so ./memory_stress
 *
 * Build: cc memory_stress.c -I$CUDA_HOME/include -L$CUDA_HOME/lib64 -lcudart -o memory_stress
 */
#include <cuda_runtime_api.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)
#define MAX_BLOCKS 64

static const char usage[] = "usage: memory_stress [--step MiB] [--max MiB]\n"
                            "  --step MiB   size of the first block; each next one is twice as large (default 64)\n"
                            "  --max MiB    stop, satisfied, once this much is held (default: no end)\n";

/* "64.0 MiB", "1.5 GiB": as long as every other, for columns. */
static const char *human(size_t bytes, char text[16])
{
    double mib = (double)bytes / (double)MIB;
    snprintf(text, 16, mib < 1024 ? "%6.1f MiB" : "%6.1f GiB", mib < 1024 ? mib : mib / 1024);
    return text;
}

/* The value behind an option, in MiB; ends the program when it is no positive number. */
static size_t read_mib(const char *option, const char *value)
{
    char *end = NULL;
    unsigned long mib = value ? strtoul(value, &end, 10) : 0;
    if (!value || *end || mib == 0 || mib > ((size_t)-1) / MIB) {
        fprintf(stderr, "memory_stress: %s needs a number of MiB\n%s", option, usage);
        exit(2);
    }
    return mib * MIB;
}

static void show_room(const char *when)
{
    size_t free_bytes, total_bytes;
    cudaError_t error = cudaMemGetInfo(&free_bytes, &total_bytes);
    char left[16], total[16];
    if (error == cudaSuccess)
        printf("%-8s  %s free of %s\n", when, human(free_bytes, left), human(total_bytes, total));
    else
        printf("%-8s  unknown (%s)\n", when, cudaGetErrorName(error));
}

/* What a failed call leaves behind: an error, once, and then a runtime as good as new. */
static void show_refusal(size_t size, cudaError_t error)
{
    char text[16];
    printf("refused   %s   %s: %s\n\n", human(size, text), cudaGetErrorName(error), cudaGetErrorString(error));
    printf("cudaGetLastError() says %s,", cudaGetErrorName(cudaGetLastError()));
    printf(" asked again %s\n", cudaGetErrorName(cudaGetLastError()));
}

int main(int argc, char **argv)
{
    void *blocks[MAX_BLOCKS];
    size_t step = 64 * MIB, max = (size_t)-1, held = 0, count = 0;
    struct cudaDeviceProp device;
    char one[16], two[16];

    for (int i = 1; i < argc; i += 2) {
        if (strcmp(argv[i], "--step") == 0)
            step = read_mib("--step", argv[i + 1]);
        else if (strcmp(argv[i], "--max") == 0)
            max = read_mib("--max", argv[i + 1]);
        else
            return fputs(usage, strcmp(argv[i], "--help") == 0 ? stdout : stderr),
                   strcmp(argv[i], "--help") == 0 ? 0 : 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0); /* what was printed should be seen, should the machine freeze */

    cudaError_t error = cudaGetDeviceProperties(&device, 0);
    if (error != cudaSuccess) {
        fprintf(stderr, "memory_stress: no usable GPU: %s (%s)\n", cudaGetErrorString(error), cudaGetErrorName(error));
        return 1;
    }
    printf("memory stress test on %s, %s memory\n", device.name, device.integrated ? "unified" : "its own");
    show_room("before");
    puts("");

    for (size_t size = step; count < MAX_BLOCKS && held < max; size *= 2) {
        if (size > max - held)
            size = max - held;
        error = cudaMalloc(&blocks[count], size);
        if (error != cudaSuccess) {
            show_refusal(size, error);
            break;
        }
        count++; /* no need to touch it: the driver took the pages inside the call */
        held += size;
        printf("granted   %s   %s held\n", human(size, one), human(held, two));
    }

    size_t most = held;
    while (count > 0)
        cudaFree(blocks[--count]);
    show_room("freed");

    void *small;
    cudaError_t again = cudaMalloc(&small, step);
    printf("%-8s  %s: %s\n", "again", human(step, one), cudaGetErrorName(again));
    if (again == cudaSuccess)
        cudaFree(small);

    printf("\nmost held at once: %s; the program lives, and so does the machine\n",
           human(most, one) + strspn(one, " "));
    return error == cudaSuccess || error == cudaErrorMemoryAllocation ? 0 : 1;
}
