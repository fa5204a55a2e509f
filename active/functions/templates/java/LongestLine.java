import io.sealstone.function.Call;
import io.sealstone.function.Osd;
import io.sealstone.function.OsdFunction;
import io.sealstone.function.OsdReader;
import java.nio.ByteBuffer;

/**
 * FUNCTION: returns the length of the longest line of each object, as JSON lines.
 *
 * <p>Build it with {@code make}, run it on local files with {@code make local}.
 */
public final class LongestLine implements OsdFunction {
    @Override
    public long run(Osd osd, Call call) throws Exception {
        int count = call.objects().length;
        for (int object = 0; object < count; object++) {
            long longest = longestLine(osd, object);
            osd.result("{\"object\":" + object + ",\"longest\":" + longest + "}\n");
            osd.progress(object + 1, count);
        }
        return 0;
    }

    private static long longestLine(Osd osd, int object) throws Exception {
        long longest = 0;
        long current = 0;
        try (OsdReader reader = osd.reader(object)) {
            for (ByteBuffer part = reader.next(); part != null; part = reader.next()) {
                int length = part.limit();
                for (int index = 0; index < length; index++) {
                    if (part.get(index) == '\n') {
                        current = 0;
                    } else if (++current > longest) {
                        longest = current;
                    }
                }
            }
        }
        return longest;
    }
}
