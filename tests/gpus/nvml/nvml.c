/* A stand-in for libnvidia-ml.so.1, for tests: the behaviour is read from the text file named by NVML_STANDIN,
 * else by BEHAVIOUR when it was compiled, and read again whenever that file is replaced. Written against the public
 * NVML API reference; struct layouts are those of nvidia-ml-py. One setting a line, `#` begins a comment:
 *
 *   init CODE                      nvmlInit fails with this return code
 *   count N | count_error CODE     how many GPUs nvmlDeviceGetCount tells of
 *   driver TEXT | cuda N
 *   fail FUNCTION CODE             for all GPUs; a name without _v<n> stands for all its versions
 *   latency FUNCTION|* MICROSECONDS (of several that match, the first counts; so too for fail)
 *   hang FUNCTION|*                the call does not return while this line stands
 *   topology A B LEVEL             nvmlDeviceGetTopologyCommonAncestor of two GPUs
 *   xid SEQUENCE GPU CODE          an event, delivered once to each event set made before the line was written
 *   gpu I KEY VALUE...             see gpu_line(); a name may have any bytes
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define MAX_GPUS 64
#define MAX_MIG 8
#define MAX_PROCESSES 256
#define MAX_RULES 128
#define MAX_XIDS 64
#define LINKS 18
#define SUCCESS 0
#define INVALID 2
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define INSUFFICIENT 7
#define TIMEOUT 10
#define LOST 15
#define UNINITIALIZED 1
#define NO_VALUE 0xffffffffffffffffULL
#define ALL_LINKS 0xffffffff

typedef unsigned int uint;
typedef unsigned long long ull;

struct process { uint pid; ull memory; char type; uint gi, ci; int sm; }; /* sm: -1 an equal part, -2 rests */
struct instance { int present; uint gi, ci, slices; char uuid[96]; char profile[32]; ull memory; };
struct rule { char name[64]; int gpu; long value; };
struct gpu {
    char uuid[96], name[96], serial[32];
    ull total, used, reserved, throttle, corrected, uncorrected;
    ull sent[2], received[2]; /* by NVLink: KiB when the clock began, KiB a second since */
    int counts;
    int counters; /* has GPM */
    double gpm[2];
    int util, memory_util, temperature, sm_clock, memory_clock, fan, lost, recovery, numa, minor, persistence, mig;
    uint power, limit, default_limit, addressing, domain, bus, tx, rx, remap[4];
    int link[LINKS]; /* peer's index, -1: inactive, -2: an NVSwitch */
    int processes;
    struct process process[MAX_PROCESSES];
    struct instance instance[MAX_MIG];
};
struct device { int gpu, instance; };

static struct {
    int init, count, count_error, cuda;
    char driver[64];
    struct gpu gpu[MAX_GPUS];
    struct rule fail[MAX_RULES], latency[MAX_RULES], hang[MAX_RULES];
    int fails, latencies, hangs;
    int topology[MAX_GPUS][MAX_GPUS];
    struct { long sequence; int gpu; ull code; } xid[MAX_XIDS];
    int xids;
} now;

static struct device whole[MAX_GPUS], slice[MAX_GPUS][MAX_MIG];
struct event_set { long seen; int registered[MAX_GPUS]; };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct stat read_last;
static int started;

/* ---- the behaviour file ---- */

static void defaults(void)
{
    memset(&now, 0, sizeof now);
    strcpy(now.driver, "570.86.15");
    now.cuda = 12080;
    for (int i = 0; i < MAX_GPUS; i++) {
        struct gpu *g = &now.gpu[i];
        snprintf(g->uuid, sizeof g->uuid, "GPU-%08x-0000-4000-8000-000000000000", i);
        strcpy(g->name, "NVIDIA H100 80GB HBM3");
        snprintf(g->serial, sizeof g->serial, "16500000000%02d", i);
        g->total = 85520809984ULL;
        g->reserved = 600ULL << 20;
        g->temperature = 30 + i % 8;
        g->power = 70000;
        g->limit = g->default_limit = 700000;
        g->sm_clock = 345;
        g->memory_clock = 2619;
        g->throttle = 1;
        g->fan = -1;
        g->numa = i / 4;
        g->minor = i;
        g->bus = 0x10 + i;
        g->persistence = 1;
        for (int l = 0; l < LINKS; l++)
            g->link[l] = -1;
        for (int j = 0; j < MAX_GPUS; j++)
            now.topology[i][j] = i / 4 == j / 4 ? 40 : 50;
    }
}

static void rule(struct rule *rules, int *count, const char *name, int gpu, long value)
{
    if (*count < MAX_RULES) {
        struct rule *r = &rules[(*count)++];
        snprintf(r->name, sizeof r->name, "%s", name);
        r->gpu = gpu;
        r->value = value;
    }
}

static void add_process(struct gpu *g, const char *text)
{
    struct process p = { .type = 'C', .gi = 0xffffffff, .ci = 0xffffffff, .sm = -1 };
    char memory[32] = "";
    if (sscanf(text, "%u %31s %c %u %u", &p.pid, memory, &p.type, &p.gi, &p.ci) >= 2 && g->processes < MAX_PROCESSES) {
        p.memory = memory[0] == '-' ? NO_VALUE : strtoull(memory, NULL, 10);
        g->process[g->processes++] = p;
    }
}

static void add_instance(struct gpu *g, const char *text)
{
    struct instance i = { .present = 1 };
    uint place;
    if (sscanf(text, "%u %u %u %95s %31s %llu", &place, &i.gi, &i.ci, i.uuid, i.profile, &i.memory) == 6 && place < MAX_MIG) {
        i.slices = (uint)atoi(i.profile);
        g->instance[place] = i;
    }
}

static void gpu_line(int index, const char *key, const char *text)
{
    struct gpu *g = &now.gpu[index];
    struct { const char *key; int *at; } ints[] = {
        { "util", &g->util }, { "memory_util", &g->memory_util }, { "temperature", &g->temperature },
        { "sm_clock", &g->sm_clock }, { "memory_clock", &g->memory_clock }, { "fan", &g->fan }, { "lost", &g->lost },
        { "recovery", &g->recovery }, { "numa", &g->numa }, { "minor", &g->minor }, { "persistence", &g->persistence },
        { "mig", &g->mig }, { "power", (int *)&g->power }, { "limit", (int *)&g->limit },
        { "default_limit", (int *)&g->default_limit }, { "addressing", (int *)&g->addressing },
        { "bus", (int *)&g->bus },
        { "tx", (int *)&g->tx }, { "rx", (int *)&g->rx }, { "remap_corrected", (int *)&g->remap[0] },
        { "remap_uncorrected", (int *)&g->remap[1] }, { "remap_pending", (int *)&g->remap[2] },
        { "remap_failed", (int *)&g->remap[3] },
    };
    struct { const char *key; ull *at; } longs[] = {
        { "total", &g->total }, { "used", &g->used }, { "reserved", &g->reserved }, { "throttle", &g->throttle },
        { "ecc_corrected", &g->corrected }, { "ecc_uncorrected", &g->uncorrected },
    };
    char name[64];
    long value;
    int link, peer;
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++)
        if (!strcmp(key, ints[i].key))
            *ints[i].at = (int)strtol(text, NULL, 0);
    for (size_t i = 0; i < sizeof longs / sizeof *longs; i++)
        if (!strcmp(key, longs[i].key))
            *longs[i].at = strtoull(text, NULL, 0);
    if (!strcmp(key, "uuid"))
        snprintf(g->uuid, sizeof g->uuid, "%s", text);
    else if (!strcmp(key, "name"))
        snprintf(g->name, sizeof g->name, "%s", text);
    else if (!strcmp(key, "fail") && sscanf(text, "%63s %ld", name, &value) == 2)
        rule(now.fail, &now.fails, name, index, value);
    else if (!strcmp(key, "hang") && sscanf(text, "%63s", name) == 1)
        rule(now.hang, &now.hangs, name, index, 1);
    else if (!strcmp(key, "process"))
        add_process(g, text);
    else if (!strcmp(key, "sm") && sscanf(text, "%d %ld", &link, &value) == 2) {
        for (int i = 0; i < g->processes; i++)
            if ((int)g->process[i].pid == link)
                g->process[i].sm = (int)value;
    } else if (!strcmp(key, "nvlink_tx"))
        g->counts |= sscanf(text, "%llu %llu", &g->sent[0], &g->sent[1]) > 0;
    else if (!strcmp(key, "nvlink_rx"))
        g->counts |= sscanf(text, "%llu %llu", &g->received[0], &g->received[1]) > 0;
    else if (!strcmp(key, "gpm"))
        g->counters = sscanf(text, "%lf %lf", &g->gpm[0], &g->gpm[1]) == 2;
    else if (!strcmp(key, "instance"))
        add_instance(g, text);
    else if (!strcmp(key, "nvlink") && sscanf(text, "%d %d", &link, &peer) == 2 && link >= 0 && link < LINKS)
        g->link[link] = peer;
}

static void top_line(const char *key, const char *text)
{
    char name[64];
    long value;
    int a, b;
    ull code;
    if (!strcmp(key, "init"))
        now.init = atoi(text);
    else if (!strcmp(key, "count"))
        now.count = atoi(text) < MAX_GPUS ? atoi(text) : MAX_GPUS;
    else if (!strcmp(key, "count_error"))
        now.count_error = atoi(text);
    else if (!strcmp(key, "cuda"))
        now.cuda = atoi(text);
    else if (!strcmp(key, "driver"))
        snprintf(now.driver, sizeof now.driver, "%s", text);
    else if (!strcmp(key, "fail") && sscanf(text, "%63s %ld", name, &value) == 2)
        rule(now.fail, &now.fails, name, -1, value);
    else if (!strcmp(key, "latency") && sscanf(text, "%63s %ld", name, &value) == 2)
        rule(now.latency, &now.latencies, name, -1, value);
    else if (!strcmp(key, "hang") && sscanf(text, "%63s", name) == 1)
        rule(now.hang, &now.hangs, name, -1, 1);
    else if (!strcmp(key, "topology") && sscanf(text, "%d %d %ld", &a, &b, &value) == 3 && a < MAX_GPUS && b < MAX_GPUS)
        now.topology[a][b] = now.topology[b][a] = (int)value;
    else if (!strcmp(key, "xid") && sscanf(text, "%ld %d %llu", &value, &a, &code) == 3 && now.xids < MAX_XIDS) {
        now.xid[now.xids].sequence = value;
        now.xid[now.xids].gpu = a;
        now.xid[now.xids++].code = code;
    }
}

static void read_line(char *line)
{
    char key[64];
    int index, used = 0;
    line[strcspn(line, "\n")] = 0;
    if (sscanf(line, "gpu %d %63s %n", &index, key, &used) == 2 && used && index >= 0 && index < MAX_GPUS)
        gpu_line(index, key, line + used);
    else if (line[0] != '#' && sscanf(line, "%63s %n", key, &used) == 1 && used)
        top_line(key, line + used);
}

static void refresh(void)
{
    const char *path = getenv("NVML_STANDIN");
#ifdef BEHAVIOUR
    path = path ? path : BEHAVIOUR;
#endif
    struct stat st;
    char line[512];
    if (!path || stat(path, &st)) {
        if (!now.driver[0])
            defaults();
        return;
    }
    if (now.driver[0] && st.st_ino == read_last.st_ino && st.st_size == read_last.st_size &&
        st.st_mtim.tv_sec == read_last.st_mtim.tv_sec && st.st_mtim.tv_nsec == read_last.st_mtim.tv_nsec)
        return;
    FILE *file = fopen(path, "r");
    if (!file)
        return;
    defaults();
    while (fgets(line, sizeof line, file))
        read_line(line);
    fclose(file);
    read_last = st;
}

/* ---- what every call does first ---- */

static int names(const char *pattern, const char *function)
{
    size_t n = strlen(pattern);
    if (!strcmp(pattern, "*"))
        return 1;
    return !strncmp(pattern, function, n) && (!function[n] || (function[n] == '_' && function[n + 1] == 'v'));
}

static const struct rule *find(const struct rule *rules, int count, const char *function, int gpu)
{
    for (int i = 0; i < count; i++)
        if (names(rules[i].name, function) && (rules[i].gpu < 0 || rules[i].gpu == gpu))
            return &rules[i];
    return NULL;
}

static void pause_for(long microseconds)
{
    struct timespec t = { microseconds / 1000000, microseconds % 1000000 * 1000 };
    nanosleep(&t, NULL);
}

static int enter(const char *function, int gpu)
{
    const struct rule *found;
    int code = SUCCESS;
    long latency;
    for (;;) {
        pthread_mutex_lock(&lock);
        refresh();
        if (!find(now.hang, now.hangs, function, gpu))
            break;
        pthread_mutex_unlock(&lock);
        pause_for(20000);
    }
    found = find(now.latency, now.latencies, function, gpu);
    latency = found ? found->value : 0;
    found = find(now.fail, now.fails, function, gpu);
    if (found)
        code = (int)found->value;
    else if (gpu >= 0 && now.gpu[gpu].lost)
        code = LOST;
    pthread_mutex_unlock(&lock);
    if (latency)
        pause_for(latency);
    return code;
}

static int enter_device(const char *function, const struct device *d)
{
    if (!d) { /* the real library crashes here; a test must not pass by accident */
        fprintf(stderr, "nvml stand-in: %s called with a NULL handle\n", function);
        if (getenv("NVML_STANDIN_STRICT"))
            abort();
        return INVALID;
    }
    return started ? enter(function, d->gpu) : UNINITIALIZED;
}

#define CALL(d) do { int code_ = enter_device(__func__, d); if (code_) return code_; } while (0)
#define SYSTEM() do { int code_ = started ? enter(__func__, -1) : UNINITIALIZED; if (code_) return code_; } while (0)
#define GPU(d) (&now.gpu[(d)->gpu])
#define NEEDS(condition) do { if (!(condition)) return NOT_SUPPORTED; } while (0)

static int put(char *to, uint size, const char *text)
{
    if (strlen(text) >= size)
        return INSUFFICIENT;
    strcpy(to, text);
    return SUCCESS;
}

/* ---- library and system ---- */

int nvmlInitWithFlags(uint flags)
{
    (void)flags;
    for (int i = 0; i < MAX_GPUS; i++) {
        whole[i] = (struct device){ i, -1 };
        for (int m = 0; m < MAX_MIG; m++)
            slice[i][m] = (struct device){ i, m };
    }
    int code = enter(__func__, -1);
    if (!code)
        code = now.init;
    if (!code)
        started++;
    return code;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { if (!started) return UNINITIALIZED; started--; return SUCCESS; }

const char *nvmlErrorString(int code)
{
    static const char *text[] = { "Success", "Uninitialized", "Invalid Argument", "Not Supported",
        "Insufficient Permissions", "Already Initialized", "Not Found", "Insufficient Size",
        "Insufficient External Power", "Driver Not Loaded", "Timeout", "Interrupt Request Issue",
        "NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM", "GPU is lost",
        "GPU requires reset", "The operating system has blocked the request", "RM has detected an NVML/RM version mismatch." };
    return code >= 0 && code < (int)(sizeof text / sizeof *text) ? text[code] : "Unknown Error";
}

int nvmlSystemGetDriverVersion(char *to, uint size) { SYSTEM(); return put(to, size, now.driver); }
int nvmlSystemGetNVMLVersion(char *to, uint size) { SYSTEM(); return put(to, size, "12.570.86.15"); }
int nvmlSystemGetCudaDriverVersion(int *to) { SYSTEM(); *to = now.cuda; return SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *to) { return nvmlSystemGetCudaDriverVersion(to); }

int nvmlDeviceGetCount_v2(uint *count)
{
    SYSTEM();
    if (now.count_error)
        return now.count_error;
    *count = (uint)now.count;
    return SUCCESS;
}

/* ---- handles ---- */

int nvmlDeviceGetHandleByIndex_v2(uint index, struct device **to)
{
    int code = started ? enter(__func__, (int)index < now.count ? (int)index : -1) : UNINITIALIZED;
    if (code)
        return code;
    if ((int)index >= now.count)
        return INVALID;
    *to = &whole[index];
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, struct device **to)
{
    SYSTEM();
    for (int i = 0; i < now.count; i++) {
        if (!strcmp(uuid, now.gpu[i].uuid)) {
            *to = &whole[i];
            return now.gpu[i].lost ? LOST : SUCCESS;
        }
        for (int m = 0; m < MAX_MIG; m++)
            if (now.gpu[i].instance[m].present && !strcmp(uuid, now.gpu[i].instance[m].uuid)) {
                *to = &slice[i][m];
                return SUCCESS;
            }
    }
    return NOT_FOUND;
}

static void bus_id(const struct gpu *g, char *to) { sprintf(to, "%08X:%02X:00.0", g->domain, g->bus); }

int nvmlDeviceGetHandleByPciBusId_v2(const char *text, struct device **to)
{
    char id[32];
    SYSTEM();
    for (int i = 0; i < now.count; i++) {
        bus_id(&now.gpu[i], id);
        if (!strcmp(text, id)) {
            *to = &whole[i];
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

int nvmlDeviceGetIndex(struct device *d, uint *to) { CALL(d); *to = (uint)(d->instance < 0 ? d->gpu : d->instance); return SUCCESS; }
int nvmlDeviceGetMinorNumber(struct device *d, uint *to) { CALL(d); *to = (uint)GPU(d)->minor; return SUCCESS; }
int nvmlDeviceGetUUID(struct device *d, char *to, uint size)
{
    CALL(d);
    return put(to, size, d->instance < 0 ? GPU(d)->uuid : GPU(d)->instance[d->instance].uuid);
}
int nvmlDeviceGetName(struct device *d, char *to, uint size)
{
    char name[160];
    CALL(d);
    snprintf(name, sizeof name, "%s%s%s", GPU(d)->name, d->instance < 0 ? "" : " MIG ",
             d->instance < 0 ? "" : GPU(d)->instance[d->instance].profile);
    return put(to, size, name);
}
int nvmlDeviceGetSerial(struct device *d, char *to, uint size) { CALL(d); return put(to, size, GPU(d)->serial); }

struct pci { char legacy[16]; uint domain, bus, device, id, subsystem; char bus_id[32]; };
static void fill_pci(const struct gpu *g, struct pci *to)
{
    memset(to, 0, sizeof *to);
    to->domain = g->domain;
    to->bus = g->bus;
    to->id = 0x233010de;
    snprintf(to->legacy, sizeof to->legacy, "%04X:%02X:00.0", g->domain & 0xffff, g->bus & 0xff);
    bus_id(g, to->bus_id);
}
int nvmlDeviceGetPciInfo_v3(struct device *d, struct pci *to) { CALL(d); fill_pci(GPU(d), to); return SUCCESS; }
int nvmlDeviceGetNumaNodeId(struct device *d, uint *to) { CALL(d); NEEDS(GPU(d)->numa >= 0); *to = (uint)GPU(d)->numa; return SUCCESS; }
int nvmlDeviceGetCudaComputeCapability(struct device *d, int *major, int *minor) { CALL(d); *major = 9; *minor = 0; return SUCCESS; }

/* ---- light readings ---- */

struct memory { ull total, free, used; };
struct memory_v2 { uint version; ull total, reserved, free, used; };

int nvmlDeviceGetMemoryInfo_v2(struct device *d, struct memory_v2 *to)
{
    CALL(d);
    struct gpu *g = GPU(d);
    to->total = d->instance < 0 ? g->total : g->instance[d->instance].memory;
    to->reserved = d->instance < 0 ? g->reserved : 0;
    to->used = 0;
    if (d->instance < 0)
        to->used = g->used;
    else
        for (int i = 0; i < g->processes; i++)
            if (g->process[i].gi == g->instance[d->instance].gi && g->process[i].memory != NO_VALUE)
                to->used += g->process[i].memory;
    to->free = to->total - to->reserved - to->used;
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo(struct device *d, struct memory *to)
{
    struct memory_v2 all;
    CALL(d);
    int code = nvmlDeviceGetMemoryInfo_v2(d, &all);
    *to = (struct memory){ all.total, all.free, all.used + all.reserved };
    return code;
}
int nvmlDeviceGetBAR1MemoryInfo(struct device *d, struct memory *to)
{
    CALL(d);
    *to = (struct memory){ 128ULL << 30, 127ULL << 30, 1ULL << 30 };
    return SUCCESS;
}
int nvmlDeviceGetUtilizationRates(struct device *d, uint *to)
{
    CALL(d);
    NEEDS(!GPU(d)->mig); /* as on hardware: instances have no utilisation here, nor has their parent */
    to[0] = (uint)GPU(d)->util;
    to[1] = (uint)GPU(d)->memory_util;
    return SUCCESS;
}
int nvmlDeviceGetEncoderUtilization(struct device *d, uint *to, uint *period) { CALL(d); *to = 0; *period = 167000; return SUCCESS; }
int nvmlDeviceGetDecoderUtilization(struct device *d, uint *to, uint *period) { CALL(d); *to = 0; *period = 167000; return SUCCESS; }
int nvmlDeviceGetTemperature(struct device *d, int sensor, uint *to) { (void)sensor; CALL(d); *to = (uint)GPU(d)->temperature; return SUCCESS; }
struct temperature { uint version; int sensor, value; };
int nvmlDeviceGetTemperatureV(struct device *d, struct temperature *to) { CALL(d); to->value = GPU(d)->temperature; return SUCCESS; }
int nvmlDeviceGetPowerUsage(struct device *d, uint *to) { CALL(d); NEEDS(d->instance < 0); *to = GPU(d)->power; return SUCCESS; }
int nvmlDeviceGetPowerManagementLimit(struct device *d, uint *to) { CALL(d); NEEDS(d->instance < 0); *to = GPU(d)->limit; return SUCCESS; }
int nvmlDeviceGetPowerManagementDefaultLimit(struct device *d, uint *to) { CALL(d); NEEDS(d->instance < 0); *to = GPU(d)->default_limit; return SUCCESS; }
int nvmlDeviceGetAddressingMode(struct device *d, uint *to) { CALL(d); to[1] = GPU(d)->addressing; return SUCCESS; }
int nvmlDeviceGetEnforcedPowerLimit(struct device *d, uint *to) { CALL(d); NEEDS(d->instance < 0); *to = GPU(d)->limit; return SUCCESS; }
int nvmlDeviceGetClockInfo(struct device *d, int type, uint *to) { CALL(d); *to = (uint)(type == 2 ? GPU(d)->memory_clock : GPU(d)->sm_clock); return SUCCESS; }
int nvmlDeviceGetMaxClockInfo(struct device *d, int type, uint *to) { CALL(d); *to = type == 2 ? 2619 : 1980; return SUCCESS; }
int nvmlDeviceGetCurrentClocksEventReasons(struct device *d, ull *to) { CALL(d); *to = GPU(d)->throttle; return SUCCESS; }
int nvmlDeviceGetCurrentClocksThrottleReasons(struct device *d, ull *to) { CALL(d); *to = GPU(d)->throttle; return SUCCESS; }
int nvmlDeviceGetFanSpeed(struct device *d, uint *to) { CALL(d); NEEDS(GPU(d)->fan >= 0); *to = (uint)GPU(d)->fan; return SUCCESS; }
int nvmlDeviceGetPerformanceState(struct device *d, int *to) { CALL(d); *to = GPU(d)->util ? 0 : 8; return SUCCESS; }
int nvmlDeviceGetPcieThroughput(struct device *d, int counter, uint *to)
{
    CALL(d);
    NEEDS(d->instance < 0);
    *to = counter ? GPU(d)->rx : GPU(d)->tx; /* KB/s; 0 is TX */
    return SUCCESS;
}

/* ---- modes and health ---- */

int nvmlDeviceGetPersistenceMode(struct device *d, int *to) { CALL(d); *to = GPU(d)->persistence; return SUCCESS; }
int nvmlDeviceGetComputeMode(struct device *d, int *to) { CALL(d); *to = 0; return SUCCESS; }
int nvmlDeviceGetDisplayMode(struct device *d, int *to) { CALL(d); *to = 0; return SUCCESS; }
int nvmlDeviceGetDisplayActive(struct device *d, int *to) { CALL(d); *to = 0; return SUCCESS; }
int nvmlDeviceGetEccMode(struct device *d, int *current, int *pending) { CALL(d); *current = *pending = 1; return SUCCESS; }
int nvmlDeviceGetTotalEccErrors(struct device *d, int type, int counter, ull *to)
{
    (void)counter;
    CALL(d);
    *to = type ? GPU(d)->uncorrected : GPU(d)->corrected;
    return SUCCESS;
}
int nvmlDeviceGetRemappedRows(struct device *d, uint *corrected, uint *uncorrected, uint *pending, uint *failed)
{
    CALL(d);
    NEEDS(!GPU(d)->mig);
    *corrected = GPU(d)->remap[0];
    *uncorrected = GPU(d)->remap[1];
    *pending = GPU(d)->remap[2];
    *failed = GPU(d)->remap[3];
    return SUCCESS;
}
struct field { uint id, scope; int64_t timestamp, latency; int type, code; union { uint ui; ull ull; } value; };
static int nvlink_field(const struct gpu *g, struct field *f)
{
    const ull *counter = f->id == 138 ? g->sent : g->received; /* NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ..._RX */
    struct timespec t;
    if (!g->counts)
        return NOT_SUPPORTED;
    if (f->scope != ALL_LINKS)
        return INVALID; /* a link's own counter is not what anybody here asks for */
    clock_gettime(CLOCK_MONOTONIC, &t);
    f->type = 3;
    f->value.ull = counter[0] + (ull)((double)counter[1] * ((double)t.tv_sec + (double)t.tv_nsec / 1e9));
    return SUCCESS;
}
int nvmlDeviceGetFieldValues(struct device *d, int count, struct field *fields)
{
    CALL(d);
    for (int i = 0; i < count; i++) {
        struct field *f = &fields[i];
        if (f->id == 138 || f->id == 139) {
            f->code = nvlink_field(GPU(d), f);
            continue;
        }
        f->code = f->id == 230 ? SUCCESS : NOT_SUPPORTED; /* NVML_FI_DEV_GET_GPU_RECOVERY_ACTION */
        f->type = 1;
        f->value.ui = (uint)GPU(d)->recovery;
    }
    return SUCCESS;
}

/* only Windows has driver models */
int nvmlDeviceGetDriverModel_v2(struct device *d, int *current, int *pending) { CALL(d); *current = *pending = 0; return NOT_SUPPORTED; }
int nvmlDeviceGetDriverModel(struct device *d, int *current, int *pending) { return nvmlDeviceGetDriverModel_v2(d, current, pending); }

/* ---- links ---- */

int nvmlDeviceGetNvLinkState(struct device *d, uint link, uint *to)
{
    CALL(d);
    if (link >= LINKS)
        return INVALID;
    *to = GPU(d)->link[link] != -1;
    return SUCCESS;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(struct device *d, uint link, struct pci *to)
{
    struct gpu nvswitch = { .bus = 0x80 };
    CALL(d);
    if (link >= LINKS || GPU(d)->link[link] == -1)
        return INVALID;
    fill_pci(GPU(d)->link[link] == -2 ? &nvswitch : &now.gpu[GPU(d)->link[link] % MAX_GPUS], to);
    return SUCCESS;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(struct device *d, uint link, int *to)
{
    CALL(d);
    if (link >= LINKS || GPU(d)->link[link] == -1)
        return INVALID;
    *to = GPU(d)->link[link] == -2 ? 2 : 0;
    return SUCCESS;
}
int nvmlDeviceGetTopologyCommonAncestor(struct device *a, struct device *b, int *to)
{
    CALL(a);
    CALL(b);
    *to = now.topology[a->gpu][b->gpu];
    return SUCCESS;
}

/* ---- MIG ---- */

int nvmlDeviceGetMigMode(struct device *d, uint *current, uint *pending)
{
    CALL(d);
    NEEDS(d->instance < 0);
    *current = *pending = (uint)GPU(d)->mig;
    return SUCCESS;
}
int nvmlDeviceIsMigDeviceHandle(struct device *d, uint *to) { CALL(d); *to = d->instance >= 0; return SUCCESS; }
int nvmlDeviceGetMaxMigDeviceCount(struct device *d, uint *to) { CALL(d); *to = GPU(d)->mig ? MAX_MIG - 1 : 0; return SUCCESS; }
int nvmlDeviceGetMigDeviceHandleByIndex(struct device *d, uint index, struct device **to)
{
    CALL(d);
    if (index >= MAX_MIG || !GPU(d)->mig || !GPU(d)->instance[index].present)
        return NOT_FOUND;
    *to = &slice[d->gpu][index];
    return SUCCESS;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(struct device *d, struct device **to) { CALL(d); *to = &whole[d->gpu]; return SUCCESS; }
int nvmlDeviceGetGpuInstanceId(struct device *d, uint *to) { CALL(d); NEEDS(d->instance >= 0); *to = GPU(d)->instance[d->instance].gi; return SUCCESS; }
int nvmlDeviceGetComputeInstanceId(struct device *d, uint *to) { CALL(d); NEEDS(d->instance >= 0); *to = GPU(d)->instance[d->instance].ci; return SUCCESS; }
struct attributes { uint sm, copy, decoder, encoder, jpeg, ofa, gpu_slices, compute_slices; ull memory_mb; };
int nvmlDeviceGetAttributes_v2(struct device *d, struct attributes *to)
{
    CALL(d);
    NEEDS(d->instance >= 0);
    memset(to, 0, sizeof *to);
    to->gpu_slices = to->compute_slices = GPU(d)->instance[d->instance].slices;
    to->memory_mb = GPU(d)->instance[d->instance].memory >> 20;
    return SUCCESS;
}

/* ---- processes ---- */

struct process_info { uint pid; ull memory; uint gi, ci; };
struct process_info_v1 { uint pid; ull memory; };

static int list(struct device *d, char type, uint *count, struct process_info *to)
{
    const struct gpu *g = GPU(d);
    uint room = to ? *count : 0, found = 0;
    for (int i = 0; i < g->processes; i++) {
        const struct process *p = &g->process[i];
        if (p->type != type || (d->instance >= 0 && p->gi != g->instance[d->instance].gi))
            continue;
        if (found < room)
            to[found] = (struct process_info){ p->pid, p->memory, p->gi, p->ci };
        found++;
    }
    *count = found;
    return found > room ? INSUFFICIENT : SUCCESS;
}
static int list_v1(struct device *d, char type, uint *count, struct process_info_v1 *to)
{
    struct process_info all[MAX_PROCESSES];
    uint room = *count, found = MAX_PROCESSES;
    int code = list(d, type, &found, all);
    *count = found;
    if (code || found > room)
        return code ? code : INSUFFICIENT;
    for (uint i = 0; i < found; i++)
        to[i] = (struct process_info_v1){ all[i].pid, all[i].memory };
    return SUCCESS;
}
#define PROCESSES(kind, type)                                                                                          \
    int nvmlDeviceGet##kind##RunningProcesses_v3(struct device *d, uint *n, struct process_info *to) { CALL(d); return list(d, type, n, to); } \
    int nvmlDeviceGet##kind##RunningProcesses_v2(struct device *d, uint *n, struct process_info *to) { CALL(d); return list(d, type, n, to); } \
    int nvmlDeviceGet##kind##RunningProcesses(struct device *d, uint *n, struct process_info_v1 *to) { CALL(d); return list_v1(d, type, n, to); }
PROCESSES(Compute, 'C')
PROCESSES(Graphics, 'G')
PROCESSES(MPSCompute, 'M')

#ifndef OLD_DRIVER
struct process_sample { uint pid; ull at; uint sm, memory, encoder, decoder; };
int nvmlDeviceGetProcessUtilization(struct device *d, struct process_sample *to, uint *count, ull since)
{
    const struct gpu *g = GPU(d);
    struct timespec t;
    uint room = to ? *count : 0, found = 0;
    CALL(d);
    NEEDS(!g->mig);
    *count = (uint)g->processes;
    if (!*count)
        return NOT_FOUND;
    if (room < *count)
        return INSUFFICIENT;
    clock_gettime(CLOCK_REALTIME, &t);
    ull at = ((ull)t.tv_sec * 10 + (ull)t.tv_nsec / 100000000) * 100000; /* ten samples a second */
    for (int i = 0; i < g->processes && at > since; i++) {
        const struct process *p = &g->process[i];
        uint sm = p->sm >= 0 ? (uint)p->sm : (uint)(g->util / g->processes);
        if (p->sm != -2)
            to[found++] = (struct process_sample){ p->pid, at, sm, (uint)(g->memory_util / g->processes), 0, 0 };
    }
    *count = found;
    return found ? SUCCESS : NOT_FOUND;
}
#endif

/* ---- performance counters ---- */

struct gpm_support { uint version, supported; };
struct gpm_sample { int gpu; long taken; };
struct gpm_metric { uint id; int code; double value; const char *names[3]; };
struct gpm_request { uint version, count; struct gpm_sample *before, *after; struct gpm_metric metrics[]; };

int nvmlGpmQueryDeviceSupport(struct device *d, struct gpm_support *to) { CALL(d); to->supported = (uint)GPU(d)->counters; return SUCCESS; }
int nvmlGpmSampleAlloc(struct gpm_sample **to) { SYSTEM(); *to = calloc(1, sizeof **to); return SUCCESS; }
int nvmlGpmSampleFree(struct gpm_sample *sample) { free(sample); return SUCCESS; }
int nvmlGpmSampleGet(struct device *d, struct gpm_sample *to)
{
    static long taken;
    CALL(d);
    NEEDS(GPU(d)->counters && d->instance < 0);
    to->gpu = d->gpu;
    to->taken = ++taken;
    return SUCCESS;
}
int nvmlGpmMigSampleGet(struct device *d, uint instance, struct gpm_sample *to)
{
    for (int i = 0; i < MAX_MIG; i++)
        if (GPU(d)->instance[i].present && GPU(d)->instance[i].gi == instance)
            return nvmlGpmSampleGet(d, to);
    return INVALID;
}
int nvmlGpmMetricsGet(struct gpm_request *request)
{
    SYSTEM();
    if (request->version != 1 || !request->before || !request->after || request->before->taken >= request->after->taken)
        return INVALID;
    for (uint i = 0; i < request->count; i++) {
        struct gpm_metric *m = &request->metrics[i];
        const struct gpu *g = &now.gpu[request->after->gpu];
        m->code = m->id == 2 || m->id == 10 ? SUCCESS : NOT_SUPPORTED;
        m->value = g->gpm[m->id == 10];
    }
    return SUCCESS;
}

/* ---- events ---- */

struct event { struct device *device; ull type, data; uint gi, ci; };

int nvmlEventSetCreate(struct event_set **to)
{
    SYSTEM();
    *to = calloc(1, sizeof **to);
    for (int i = 0; i < now.xids; i++)
        if (now.xid[i].sequence > (*to)->seen)
            (*to)->seen = now.xid[i].sequence;
    return SUCCESS;
}
int nvmlEventSetFree(struct event_set *set) { free(set); return SUCCESS; }
int nvmlDeviceGetSupportedEventTypes(struct device *d, ull *to) { CALL(d); *to = 0x1f; return SUCCESS; }
int nvmlDeviceRegisterEvents(struct device *d, ull types, struct event_set *set)
{
    CALL(d);
    if (!set)
        return INVALID;
    set->registered[d->gpu] |= (types & 8) != 0;
    return SUCCESS;
}
static int next_event(struct event_set *set, struct event *to)
{
    for (int i = 0; i < now.xids; i++)
        if (now.xid[i].sequence > set->seen) {
            set->seen = now.xid[i].sequence;
            if (!set->registered[now.xid[i].gpu])
                continue;
            *to = (struct event){ &whole[now.xid[i].gpu], 8, now.xid[i].code, 0xffffffff, 0xffffffff };
            return 1;
        }
    return 0;
}
int nvmlEventSetWait_v2(struct event_set *set, struct event *to, uint milliseconds)
{
    if (!set)
        return INVALID;
    for (long left = milliseconds;; left -= 10) {
        SYSTEM();
        if (next_event(set, to))
            return SUCCESS;
        if (left <= 0)
            return TIMEOUT;
        pause_for(left < 10 ? left * 1000 : 10000);
    }
}
