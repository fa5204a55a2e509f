package io.sealstone.examples;

import io.sealstone.function.Call;
import io.sealstone.function.Osd;
import io.sealstone.function.OsdFunction;
import io.sealstone.function.OsdObject;
import io.sealstone.function.OsdReader;
import java.nio.ByteBuffer;

/** Counts words: runs of bytes above the space. */
public final class WordCount implements OsdFunction {
    @Override
    public long run(Osd osd, Call call) throws Exception {
        long words = 0;
        for (OsdObject object : call.objects()) {
            int isInWord = 0;
            try (OsdReader reader = osd.reader(object.handle())) {
                for (ByteBuffer part = reader.next(); part != null; part = reader.next()) {
                    int length = part.limit();
                    // 0 and 1 instead of a branch, which the processor could not predict.
                    for (int index = 0; index < length; index++) {
                        int isWord = (' ' - (part.get(index) & 0xFF)) >>> 31;
                        words += isWord & ~isInWord;
                        isInWord = isWord;
                    }
                }
            }
        }
        osd.result(words + "\n");
        return 0;
    }
}
