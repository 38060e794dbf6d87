/*
 * driver_pool.c - a kernel module that takes and keeps memory as NVIDIA's driver since 590 does.
 *
 * Memory is taken in blocks of a fixed order: from the pool first, and the rest from the kernel. Blocks that are given
 * back, that an ended process had, and that a failed request had got so far go into the pool. Only the shrinker takes
 * them out for others. It counts blocks, not pages, so the kernel asks it late (see RESULTS.md).
 *
 * Programs use /dev/driver_pool (driver_pool.h); what an open file holds is given back when it is closed. A read says
 * what is in the pool, what the shrinker was asked for, and what each process holds. /proc/driver/nvidia/params says
 * whether there is a pool.
 */
#define pr_fmt(format) "driver_pool: " format

#include "driver_pool.h"

#include <linux/fs.h>
#include <linux/highmem.h>
#include <linux/list.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/shrinker.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/uaccess.h>

static unsigned int order = 9;
module_param(order, uint, 0444);
MODULE_PARM_DESC(order, "a block has 2^order pages");

static bool pools = true;
module_param(pools, bool, 0444);
MODULE_PARM_DESC(pools, "N: what is given back goes to the kernel, as before 590");

static unsigned long fail_after;
module_param(fail_after, ulong, 0644);
MODULE_PARM_DESC(fail_after, "a request gets at most this many blocks from the kernel, then fails; 0: no bound");

#define BLOCK_BYTES (PAGE_SIZE << order)
#define TO_MIB(blocks) (((blocks) << order) >> (20 - PAGE_SHIFT))

/* What one request got. */
struct holding {
    struct list_head in_client;
    struct list_head blocks; /* by page->lru */
    unsigned long count;
    __u64 number;
};

/* One open file. */
struct client {
    struct list_head in_clients;
    struct list_head holdings;
    struct mutex lock;
    unsigned long blocks;
    __u64 last_number;
    pid_t pid;
};

static LIST_HEAD(clients);
static DEFINE_MUTEX(clients_lock);

static DEFINE_SPINLOCK(pool_lock);
static struct {
    struct list_head blocks;
    unsigned long count;
} pool[MAX_NUMNODES];
static unsigned long shrunk_blocks, counted, scanned;
static struct shrinker *shrinker;

/* ---- the pool ---------------------------------------------------------------------------------------------------- */

static struct page *take_of_node(int node)
{
    struct page *block = NULL;
    spin_lock(&pool_lock);
    if (pool[node].count != 0) {
        block = list_first_entry(&pool[node].blocks, struct page, lru);
        list_del(&block->lru);
        pool[node].count--;
    }
    spin_unlock(&pool_lock);
    return block;
}

static struct page *take_pooled(void)
{
    struct page *block = NULL;
    int node;
    for_each_online_node(node) if ((block = take_of_node(node)) != NULL) break;
    return block;
}

static void give_block(struct page *block)
{
    int node = page_to_nid(block);
    if (!pools) {
        __free_pages(block, order);
        return;
    }
    spin_lock(&pool_lock);
    list_add(&block->lru, &pool[node].blocks);
    pool[node].count++;
    spin_unlock(&pool_lock);
}

static void clear_block(struct page *block)
{
    unsigned long i;
    for (i = 0; i < 1UL << order; i++) {
        clear_highpage(block + i);
        cond_resched();
    }
}

static unsigned long count_pool(struct shrinker *unused, struct shrink_control *control)
{
    unsigned long count;
    spin_lock(&pool_lock);
    counted++;
    count = pool[control->nid].count;
    spin_unlock(&pool_lock);
    return count;
}

static unsigned long scan_pool(struct shrinker *unused, struct shrink_control *control)
{
    unsigned long freed = 0;
    struct page *block;
    while (freed < control->nr_to_scan && (block = take_of_node(control->nid)) != NULL) {
        __free_pages(block, order);
        freed++;
    }
    spin_lock(&pool_lock);
    scanned++;
    shrunk_blocks += freed;
    spin_unlock(&pool_lock);
    return freed != 0 ? freed : SHRINK_STOP;
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

static void give_all(struct holding *holding)
{
    struct page *block, *next;
    list_for_each_entry_safe(block, next, &holding->blocks, lru)
    {
        list_del(&block->lru);
        give_block(block);
    }
    kfree(holding);
}

static bool take_blocks(struct holding *holding, unsigned long wanted)
{
    const gfp_t flags = GFP_KERNEL | __GFP_NOWARN | __GFP_RETRY_MAYFAIL | __GFP_ZERO | __GFP_COMP;
    unsigned long from_kernel = 0;
    while (holding->count < wanted) {
        struct page *block = take_pooled();
        if (block != NULL) {
            clear_block(block);
        } else {
            if (fail_after != 0 && from_kernel == fail_after)
                return false;
            block = alloc_pages(flags, order);
            if (block == NULL)
                return false;
            from_kernel++;
        }
        list_add(&block->lru, &holding->blocks);
        holding->count++;
        cond_resched();
    }
    return true;
}

static long take(struct client *client, struct driver_pool_request *request)
{
    unsigned long wanted = DIV_ROUND_UP_ULL(request->bytes, BLOCK_BYTES);
    struct holding *holding = kzalloc(sizeof(*holding), GFP_KERNEL);
    if (holding == NULL)
        return -ENOMEM;
    INIT_LIST_HEAD(&holding->blocks);
    if (!take_blocks(holding, wanted)) {
        give_all(holding);
        return -ENOMEM;
    }
    mutex_lock(&client->lock);
    request->number = holding->number = ++client->last_number;
    list_add(&holding->in_client, &client->holdings);
    client->blocks += holding->count;
    mutex_unlock(&client->lock);
    return 0;
}

static long give(struct client *client, __u64 number)
{
    struct holding *holding, *found = NULL;
    mutex_lock(&client->lock);
    list_for_each_entry(holding, &client->holdings, in_client)
    {
        if (holding->number != number)
            continue;
        found = holding;
        list_del(&found->in_client);
        client->blocks -= found->count;
        break;
    }
    mutex_unlock(&client->lock);
    if (found == NULL)
        return -EINVAL;
    give_all(found);
    return 0;
}

/* ---- the device file --------------------------------------------------------------------------------------------- */

static int show(struct seq_file *out, void *unused)
{
    struct client *client;
    unsigned long kept = 0;
    int node;
    spin_lock(&pool_lock);
    for_each_online_node(node) kept += pool[node].count;
    seq_printf(out, "pool %lu MiB\nshrunk %lu MiB\ncounted %lu\nscanned %lu\n", TO_MIB(kept), TO_MIB(shrunk_blocks),
               counted, scanned);
    spin_unlock(&pool_lock);
    mutex_lock(&clients_lock);
    list_for_each_entry(client, &clients, in_clients) if (client->blocks != 0)
        seq_printf(out, "process %d %lu MiB\n", client->pid, TO_MIB(client->blocks));
    mutex_unlock(&clients_lock);
    return 0;
}

static int open_device(struct inode *inode, struct file *file)
{
    int result = 0;
    struct client *client = kzalloc(sizeof(*client), GFP_KERNEL);
    if (client == NULL)
        return -ENOMEM;
    file->private_data = NULL; /* single_open wants it so; misc_open has put the device there */
    result = single_open(file, show, client);
    if (result != 0) {
        kfree(client);
        return result;
    }
    INIT_LIST_HEAD(&client->holdings);
    mutex_init(&client->lock);
    client->pid = current->tgid;
    mutex_lock(&clients_lock);
    list_add(&client->in_clients, &clients);
    mutex_unlock(&clients_lock);
    return 0;
}

static struct client *client_of(struct file *file)
{
    return ((struct seq_file *)file->private_data)->private;
}

static int close_device(struct inode *inode, struct file *file)
{
    struct client *client = client_of(file);
    struct holding *holding, *next;
    mutex_lock(&clients_lock);
    list_del(&client->in_clients);
    mutex_unlock(&clients_lock);
    list_for_each_entry_safe(holding, next, &client->holdings, in_client) give_all(holding);
    kfree(client);
    return single_release(inode, file);
}

static long control_device(struct file *file, unsigned int command, unsigned long argument)
{
    struct driver_pool_request request;
    void __user *where = (void __user *)argument;
    __u64 number;
    long result;
    switch (command) {
    case DRIVER_POOL_TAKE:
        if (copy_from_user(&request, where, sizeof(request)) != 0)
            return -EFAULT;
        result = take(client_of(file), &request);
        if (result == 0 && copy_to_user(where, &request, sizeof(request)) != 0)
            return -EFAULT;
        return result;
    case DRIVER_POOL_GIVE:
        return copy_from_user(&number, where, sizeof(number)) != 0 ? -EFAULT : give(client_of(file), number);
    default:
        return -ENOTTY;
    }
}

static const struct file_operations device_operations = {
    .owner = THIS_MODULE,
    .open = open_device,
    .release = close_device,
    .read = seq_read,
    .llseek = seq_lseek,
    .unlocked_ioctl = control_device,
};

static struct miscdevice device = {
    .minor = MISC_DYNAMIC_MINOR,
    .name = "driver_pool",
    .fops = &device_operations,
    .mode = 0666,
};

/* ---- the driver's parameters, and set-up ------------------------------------------------------------------------- */

static int show_parameters(struct seq_file *out, void *unused)
{
    seq_puts(out, "ResmanDebugLevel: 4294967295\n");
    if (pools)
        seq_puts(out, "EnableSystemMemoryPools: 529\n");
    return 0;
}

static struct proc_dir_entry *folder;

static int __init begin(void)
{
    int result, node;
    for (node = 0; node < MAX_NUMNODES; node++)
        INIT_LIST_HEAD(&pool[node].blocks);
    shrinker = shrinker_alloc(SHRINKER_NUMA_AWARE, "driver-pool");
    folder = proc_mkdir("driver/nvidia", NULL);
    if (shrinker == NULL || folder == NULL || !proc_create_single("params", 0444, folder, show_parameters))
        goto no_memory;
    result = misc_register(&device);
    if (result != 0)
        goto fail;
    shrinker->count_objects = count_pool;
    shrinker->scan_objects = scan_pool;
    shrinker->seeks = 1;
    shrinker_register(shrinker);
    pr_info("blocks of %lu KiB, pools %s\n", BLOCK_BYTES >> 10, pools ? "on" : "off");
    return 0;
no_memory:
    result = -ENOMEM;
fail:
    if (folder != NULL)
        proc_remove(folder);
    if (shrinker != NULL)
        shrinker_free(shrinker);
    return result;
}

static void __exit end(void)
{
    struct page *block;
    misc_deregister(&device);
    proc_remove(folder);
    shrinker_free(shrinker);
    while ((block = take_pooled()) != NULL)
        __free_pages(block, order);
}

module_init(begin);
module_exit(end);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("Stands in for the page pool of NVIDIA's driver, for the tests of sparkguard");
