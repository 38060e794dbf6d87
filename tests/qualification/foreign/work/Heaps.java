import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.util.*;
import java.util.concurrent.*;
import java.util.zip.*;

/** A program whose heap, direct buffers, mapped files and threads come and go: it prints the same under each collector. */
public class Heaps {
    static long work(int seed) {
        long sum = 0;
        List<byte[]> kept = new ArrayList<>();
        for (int round = 0; round < 60; round++) {
            byte[] block = new byte[(1 << 19) + seed * 1000 + round];
            Arrays.fill(block, (byte) (seed + round));
            CRC32 crc = new CRC32();
            crc.update(block);
            sum += crc.getValue();
            kept.add(block);
            if (kept.size() > 6) kept.remove(round % 6);
        }
        return sum;
    }

    static String refused(Callable<Object> taking) throws Exception {
        try {
            taking.call();
            return "granted";
        } catch (OutOfMemoryError error) {
            return "OutOfMemoryError";
        }
    }

    public static void main(String[] arguments) throws Exception {
        boolean never_collects = arguments.length > 0;
        ExecutorService pool = Executors.newFixedThreadPool(4);
        List<Future<Long>> answers = new ArrayList<>();
        for (int seed = 0; seed < (never_collects ? 2 : 12); seed++) {
            final int own = seed;
            answers.add(pool.submit(() -> work(own)));
        }
        long sum = 0;
        for (Future<Long> answer : answers) sum += answer.get();
        pool.shutdown();
        System.out.println(sum);
        for (int round = 0; round < (never_collects ? 1 : 3); round++) {
            ByteBuffer[] direct = new ByteBuffer[4];
            for (int i = 0; i < direct.length; i++) direct[i] = ByteBuffer.allocateDirect(6 << 20).putLong(8, i + round);
            for (ByteBuffer one : direct) sum += one.getLong(8);
            System.gc();
        }
        try (RandomAccessFile file = new RandomAccessFile("mapped", "rw")) {
            MappedByteBuffer map = file.getChannel().map(FileChannel.MapMode.READ_WRITE, 0, 8 << 20);
            for (int at = 0; at < map.capacity(); at += 4096) map.put(at, (byte) at);
            map.force();
            sum += map.get(4096 * 3);
        }
        Map<String, Integer> words = new HashMap<>();
        for (int i = 0; i < 100000; i++) words.merge("word " + i % 5000, i, Integer::sum);
        System.out.println(sum + " " + words.size() + " " + words.get("word 77"));
        if (!never_collects) System.out.println(refused(() -> new byte[Integer.MAX_VALUE - 8]) + " " + refused(() -> ByteBuffer.allocateDirect(Integer.MAX_VALUE)));
        Process child = new ProcessBuilder("sh", "-c", "echo child; exit 3").redirectErrorStream(true).start();
        System.out.println(new String(child.getInputStream().readAllBytes()).trim() + " " + child.waitFor());
    }
}
